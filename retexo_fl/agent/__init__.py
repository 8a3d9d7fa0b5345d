"""The client's side of a training: partition, trainer, mailboxes."""
