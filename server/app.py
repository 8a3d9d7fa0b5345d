from retexo_fl.federation import make_server_app

app = make_server_app()
