"""The EC2 front end: moto's store and XML behind a layer that behaves as EC2 does where moto does not."""
