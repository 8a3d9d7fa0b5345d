from retexo_fl.federation import make_client_app

app = make_client_app()
