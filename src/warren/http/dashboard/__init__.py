"""The dashboard: serves the built web application (web/, built into `static/`), and lets its pages use the API.

`page_requests` recognises and answers requests for pages and their files. `access` finds out whom the page that sends a
request for the API is signed in as; admission then treats it as any other. Previews and E2B's requests never come
there: what pages of sandboxes send never counts as sent by the dashboard.
"""
