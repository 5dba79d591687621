"""Root filesystems of images as trees of files: reading, writing, preparing and layering them."""
