"""The images of this machine: names, versions, layers, and the trees that sandboxes get."""
