"""retexo_fl beside PyTorch Geometric on one machine, and beside FedAvg of PyG models on Flower."""
