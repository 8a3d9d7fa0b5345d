#!/bin/sh
echo arm64
