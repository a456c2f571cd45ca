"""What runs where: lanes over the devices of a mesh."""
