"""Parsers fed with damaged inputs."""
