"""Skerry, a cloud that does not exist, with all that makes a cloud awkward to use.

Its machines are boxes. A label is not unique, and the only thing that a box carries. A launch is not idempotent. A new box can be
seen, read and deleted only after a while. Settings: `key`; `limit`, the quota of boxes; `full`, sizes without capacity; `hidden_s`,
how long a new box is hidden; `partial`: lists lack a part of the boxes, and say so; `page`, the most boxes of a page.
"""

import time

from base import Cloud, Refused, play

SIZES = ("small", "large")


class Skerry(Cloud):
    settings = {"key": "made-up-key", "limit": 100, "full": [], "hidden_s": 0.3, "partial": False, "page": 2}

    def answer(self, request):
        if request.headers.get("X-Key") != self.settings["key"]:
            raise Refused(401, {"reason": "key", "text": "this key opens nothing"})
        return super().answer(request)

    def create(self, _match, request):
        asked = request.json()
        size = asked.get("size")
        if size not in SIZES:
            raise Refused(422, {"reason": "size", "text": f"there is no size {size}"})
        if len(self.machines) >= self.settings["limit"]:
            raise Refused(402, {"reason": "quota", "text": f"{self.settings['limit']} boxes is the limit"})
        if size in self.settings["full"]:
            raise Refused(507, {"reason": "full", "text": f"no room for {size}"})
        number = self.number()
        box = {
            "ref": f"b-{number}",
            "label": asked["label"],
            "size": size,
            "phase": "making",
            "ip": None,
            "made": time.time(),
            "boot": asked.get("boot", ""),
        }
        self.machines[box["ref"]] = box
        return 201, {"box": {"ref": box["ref"]}}

    def seen(self, box):
        return time.time() - box["made"] >= self.settings["hidden_s"]

    def list(self, _match, request):
        first = int(request.query.get("from", 0))
        boxes = [box for box in self.machines.values() if self.seen(box)]
        if self.settings["partial"]:
            boxes = boxes[1:]
        shown = boxes[first : first + self.settings["page"]]
        more = first + self.settings["page"] if first + self.settings["page"] < len(boxes) else None
        body = {"boxes": [{name: box[name] for name in box if name != "boot"} for box in shown], "more": more}
        for box in shown if more is None else ():
            box.update({"phase": "up", "ip": f"203.0.113.{int(box['ref'][2:]) % 250 + 1}"})
        return 200, {**body, "partial": self.settings["partial"]}

    def delete(self, match, _request):
        box = self.machines.get(match[1])
        if box is None or not self.seen(box):
            raise Refused(404, {"reason": "box", "text": f"there is no box {match[1]}"})
        del self.machines[match[1]]
        return 202, None

    routes = (
        ("POST", "/boxes", create),
        ("GET", "/boxes", list),
        ("DELETE", "/boxes/([^/]+)", delete),
    )


if __name__ == "__main__":
    play(Skerry())
