"""What Flower starts for each client: it answers for one part of the graph."""

from __future__ import annotations

from retexo_fl.federation import make_client_app

app = make_client_app()
