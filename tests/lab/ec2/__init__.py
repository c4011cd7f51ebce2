"""The EC2 front end: moto's store and XML, behind a layer that adds EC2's behavior where moto differs."""
