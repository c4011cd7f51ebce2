"""A stand-in for OpenStack, made from the documented APIs of Keystone v3 and Nova: tokens, a catalog, servers, pages by marker.

Settings: `secret`; `limit`, the quota of instances; `page`, the most servers of a page; `no_host`, names of flavors for which no
host is found: the launch is accepted, and its server becomes an ERROR.
"""

import base64
import re
import urllib.parse
import uuid

from base import Cloud, Refused, now, play

FLAVORS = {"m1.small": "2", "m1.large": "4"}
IMAGE = "11111111-2222-4333-8444-555555555555"
NETWORK = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
TOKEN = "gAAAAA-made-up_token"


def error(status, name, message):
    return Refused(status, {name: {"code": status, "message": message}})


class OpenStack(Cloud):
    settings = {"secret": "made-up-secret", "limit": 100, "page": 1000, "no_host": []}

    def log_in(self, _match, request):
        identity = request.json()["auth"]["identity"]
        given = identity.get("application_credential", {})
        if identity["methods"] != ["application_credential"] or given != {"id": "ci", "secret": self.settings["secret"]}:
            raise error(401, "error", "The request you have made requires authentication.")
        there = ("RegionOne", f"{request.origin}/compute/v2.1")
        elsewhere = ("RegionTwo", f"{request.origin}/elsewhere")
        endpoints = [
            {"interface": interface, "region_id": region, "region": region, "url": url}
            for region, url in (elsewhere, there)
            for interface in ("admin", "public")
        ]
        catalog = [{"type": "image", "endpoints": []}, {"type": "compute", "name": "nova", "endpoints": endpoints}]
        body = {"token": {"methods": ["application_credential"], "expires_at": "2036-01-01T00:00:00Z", "catalog": catalog}}
        return 201, body, {"X-Subject-Token": TOKEN}

    def nova(act):
        """A call of Nova's, which needs the token."""

        def checked(self, match, request):
            if request.headers.get("X-Auth-Token") != TOKEN:
                raise error(401, "error", "The request you have made requires authentication.")
            return act(self, match, request)

        return checked

    @nova
    def flavors(self, _match, _request):
        return 200, {"flavors": [{"id": number, "name": name, "links": []} for name, number in FLAVORS.items()]}

    @nova
    def create(self, _match, request):
        asked = request.json()["server"]
        flavor = next((name for name, number in FLAVORS.items() if number == asked["flavorRef"]), None)
        if flavor is None or asked["imageRef"] != IMAGE or asked["networks"] != [{"uuid": NETWORK}]:
            raise error(400, "badRequest", "Invalid flavor, image or network.")
        if not all(len(text) <= 255 for pair in asked["metadata"].items() for text in pair):
            raise error(400, "badRequest", "Invalid input for field/attribute metadata.")
        if len(self.machines) >= self.settings["limit"]:
            used = f"{len(self.machines)} of {self.settings['limit']}"
            raise error(403, "forbidden", f"Quota exceeded for instances: Requested 1, but already used {used} instances")
        number = self.number()
        server = {
            "id": str(uuid.UUID(int=(4 << 76 | 8 << 60) + number)),
            "name": asked["name"],
            "status": "BUILD",
            "created": now().replace("+00:00", "Z"),
            "metadata": asked["metadata"],
            "flavor": {"original_name": flavor},
            "addresses": {},
            "OS-EXT-STS:task_state": "scheduling",
            "OS-SRV-USG:launched_at": None,
        }
        self.machines[server["id"]] = {**server, "user_data": base64.b64decode(asked["user_data"], validate=True).decode()}
        return 202, {"server": {"id": server["id"], "links": [], "adminPass": "x"}}

    @nova
    def list(self, _match, request):
        query = request.query
        found = [server for server in self.machines.values() if re.search(query.get("name", ""), server["name"])]
        found.reverse()
        if "marker" in query:
            places = [place for place, server in enumerate(found) if server["id"] == query["marker"]]
            if not places:
                raise error(400, "badRequest", f"marker [{query['marker']}] not found")
            found = found[places[0] + 1 :]
        shown = found[: self.settings["page"]]
        body = {"servers": [{name: value for name, value in server.items() if name != "user_data"} for server in shown]}
        if len(found) > len(shown):
            rest = urllib.parse.urlencode({**query, "marker": shown[-1]["id"]})
            body["servers_links"] = [{"rel": "next", "href": f"{request.origin}/compute/v2.1/servers/detail?{rest}"}]
        for server in shown:
            self.step(server)
        return 200, body

    def step(self, server):
        """What has been listed goes on: it boots, finds no host, or is gone."""
        if server["OS-EXT-STS:task_state"] == "deleting":
            del self.machines[server["id"]]
        elif server["status"] == "BUILD" and server["flavor"]["original_name"] in self.settings["no_host"]:
            fault = {"code": 500, "message": "No valid host was found. There are not enough hosts available."}
            server.update({"status": "ERROR", "OS-EXT-STS:task_state": None, "fault": fault})
        elif server["status"] == "BUILD":
            place = {"version": 4, "OS-EXT-IPS:type": "fixed", "addr": f"10.1.0.{int(server['id'][-12:], 16) % 250 + 1}"}
            floating = {"version": 4, "OS-EXT-IPS:type": "floating", "addr": "198.51.100.7"}
            six = {"version": 6, "OS-EXT-IPS:type": "fixed", "addr": "2001:db8::7"}
            launched = {"OS-EXT-STS:task_state": None, "OS-SRV-USG:launched_at": "2026-01-01T00:01:00.000000"}
            server.update({"status": "ACTIVE", "addresses": {"ci": [six, place, floating]}, **launched})

    @nova
    def delete(self, match, _request):
        self.there(match)["OS-EXT-STS:task_state"] = "deleting"
        return 204, None

    @nova
    def act(self, match, request):
        self.there(match)
        if request.json() != {"os-getConsoleOutput": {"length": 500}}:
            raise error(400, "badRequest", "There is no such action.")
        return 200, {"output": "Cloud-init finished\nlogin: "}

    def there(self, match):
        if match[1] not in self.machines:
            raise error(404, "itemNotFound", f"Instance {match[1]} could not be found.")
        return self.machines[match[1]]

    routes = (
        ("POST", "/identity/v3/auth/tokens", log_in),
        ("GET", "/compute/v2.1/flavors", flavors),
        ("POST", "/compute/v2.1/servers", create),
        ("GET", "/compute/v2.1/servers/detail", list),
        ("DELETE", "/compute/v2.1/servers/([0-9a-f-]+)", delete),
        ("POST", "/compute/v2.1/servers/([0-9a-f-]+)/action", act),
    )


if __name__ == "__main__":
    play(OpenStack())
