#!/bin/sh
echo aarch64
