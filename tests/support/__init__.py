"""What tests share: real graphs, real partitions, process harnesses."""
