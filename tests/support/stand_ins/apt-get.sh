#!/bin/sh
echo apt-get "$@" >> /mnt/calls
