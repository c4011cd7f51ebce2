"""A stand-in for Hetzner Cloud, made from its documented API: servers with labels, actions, pages and errors.

Settings: `token`; `limit`, the most servers of the project; `sold_out`, pairs of server type and location, such as `"cx22 fsn1"`;
`locked`, names of servers that cannot be deleted now; `page`, the most servers of a page.
"""

import re

from base import Cloud, Refused, now, play

TYPES = {"cx22": 2, "cpx31": 4}
LOCATIONS = ("fsn1", "nbg1", "hel1")
IMAGES = ("debian-12", "ubuntu-24.04")
# At most 63 characters, and letters or digits at both ends.
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


def error(status, code, message, headers=None):
    return Refused(status, {"error": {"code": code, "message": message, "details": {}}}, headers)


class Hetzner(Cloud):
    settings = {"token": "made-up-token", "limit": 100, "sold_out": [], "locked": [], "page": 50}

    def answer(self, request):
        if request.headers.get("Authorization") != f"Bearer {self.settings['token']}":
            raise error(401, "unauthorized", "unable to authenticate")
        try:
            return super().answer(request)
        except Refused as refused:
            if isinstance(refused.body["error"], str):
                raise error(404, "not_found", refused.body["error"]) from None
            raise

    def create(self, _match, request):
        asked = request.json()
        name, kind, place = asked.get("name", ""), asked.get("server_type"), asked.get("location")
        labels = asked.get("labels", {})
        if not NAME.fullmatch(name) or kind not in TYPES or place not in LOCATIONS or asked.get("image") not in IMAGES:
            raise error(422, "invalid_input", "invalid input in field 'name', 'server_type', 'location' or 'image'")
        if not all(LABEL.fullmatch(text) for pair in labels.items() for text in pair):
            raise error(422, "invalid_input", "invalid input in field 'labels'")
        if len(asked.get("user_data", "")) > 32768:
            raise error(422, "invalid_input", "invalid input in field 'user_data'")
        if len(self.machines) >= self.settings["limit"]:
            raise error(403, "resource_limit_exceeded", "server limit exceeded")
        if f"{kind} {place}" in self.settings["sold_out"]:
            raise error(412, "resource_unavailable", "error during placement")
        if any(server["name"] == name for server in self.machines.values()):
            raise error(409, "uniqueness_error", "server name is already used")
        number = self.number()
        server = {
            "id": 4710000 + number,
            "name": name,
            "status": "initializing",
            "created": now(),
            "labels": labels,
            "server_type": {"name": kind, "cores": TYPES[kind]},
            "location": {"name": place},
            "public_net": {"ipv4": {"ip": f"203.0.113.{number % 250 + 1}"}, "ipv6": None},
            "private_net": [],
            "image": {"name": asked["image"]},
        }
        self.machines[server["id"]] = {**server, "user_data": asked.get("user_data", "")}
        return 201, {"server": server, "action": action("create_server", server), "next_actions": [], "root_password": "x"}

    def list(self, _match, request):
        query = request.query
        page, per_page = int(query.get("page", 1)), min(int(query.get("per_page", 25)), self.settings["page"])
        found = [server for server in self.machines.values() if selected(server, query)]
        shown = found[(page - 1) * per_page : page * per_page]
        last = max(1, -(-len(found) // per_page))
        pagination = {
            "page": page,
            "per_page": per_page,
            "previous_page": page - 1 if page > 1 else None,
            "next_page": page + 1 if page < last else None,
            "last_page": last,
            "total_entries": len(found),
        }
        servers = [{name: value for name, value in server.items() if name != "user_data"} for server in shown]
        # What has been listed has booted, or is gone.
        for server in shown:
            if server["status"] == "deleting":
                del self.machines[server["id"]]
            else:
                server["status"] = "running"
        return 200, {"servers": servers, "meta": {"pagination": pagination}}

    def delete(self, match, _request):
        server = self.machines.get(int(match[1]))
        if server is None:
            raise error(404, "not_found", f"server with ID '{match[1]}' not found")
        if server["name"] in self.settings["locked"]:
            raise error(423, "locked", "server is locked by another action")
        server["status"] = "deleting"
        return 200, {"action": action("delete_server", server)}

    routes = (
        ("POST", "/v1/servers", create),
        ("GET", "/v1/servers", list),
        ("DELETE", r"/v1/servers/(\d+)", delete),
    )


def selected(server, query):
    """Whether a query's name and label selector (`KEY=VALUE,…`) name this server."""
    pairs = [pair.split("=", 1) for pair in query.get("label_selector", "").split(",") if pair]
    named = "name" not in query or server["name"] == query["name"]
    return named and all(server["labels"].get(pair[0]) == pair[-1] for pair in pairs)


def action(command, server):
    resources = [{"id": server["id"], "type": "server"}]
    number = server["id"] + 1000
    return {"id": number, "command": command, "status": "running", "progress": 0, "resources": resources, "error": None}


if __name__ == "__main__":
    play(Hetzner())
