"""What Flower loads as this app's ClientApp."""

from retexo_fl.federation import make_client_app

app = make_client_app()
