"""Builds images: from recipes and Dockerfiles, in sandboxes; and the images that Warren makes itself."""
