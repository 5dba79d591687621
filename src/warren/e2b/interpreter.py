"""To be filled."""

from warren.e2b.routes import Route

ROUTES: tuple[Route, ...] = ()
