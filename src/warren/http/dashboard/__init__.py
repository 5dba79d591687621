"""The dashboard: serves the built web application (web/, built into `static/`), and lets its pages use the API.

`PageEdge` stands between the guard and admission. It answers requests for pages and their files itself. To a request
for the API it adds whom the page is signed in as (access.py), and admission treats it as any other. Previews by host
never come here, and those by path and E2B's requests are passed on as they are: what pages of sandboxes send never
counts as sent by the dashboard.
"""
