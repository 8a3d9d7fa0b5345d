#!/bin/sh
# Raspberry Pi OS has two of the three packages of firmware.
case $2 in *brcm*) exit 100 ;; esac
