"""What Flower loads as this app's ServerApp."""

from retexo_fl.federation import make_server_app

app = make_server_app()
