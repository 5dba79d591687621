"""Images that come from elsewhere or go there: archives, layers, Docker engines, other machines."""
