"""Who somebody is: secrets, proofs, passwords, and whose is compared next."""
