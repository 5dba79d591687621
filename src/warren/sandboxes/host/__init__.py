"""What a sandbox uses of its host: cgroups, disks, uids, processes, and the isolation read back from the kernel."""
