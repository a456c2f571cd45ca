"""What runs where: lanes over the devices of a mesh, examples over the workers of a cluster."""
