"""Nothing here is for this machine: the guest runs it, which does not load this file."""

collect_ignore_glob = ["*"]
