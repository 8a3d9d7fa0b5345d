#!/bin/sh
# scp FILE USER@ADDRESS:  every copy's home is at /mnt/ADDRESS in all of them.
address=${2#*@}
exec cp "$1" "/mnt/${address%:}/"
