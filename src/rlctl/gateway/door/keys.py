"""Who may do what. Without an admin key everybody who reaches the gateway may (it then listens on loopback only).

    admin key      every route
    session key    the routes of one trajectory: what base_url carries, or its client sends as its API key

A session key is an HMAC of the trajectory under the admin key: nothing is stored, and every worker, every gateway with
the same admin key, and a restarted one know it.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256

from rlctl.gateway.faults import Fault

PREFIX = "sk-"


class Keys:
    """Checks keys, in a time that does not depend on them."""

    def __init__(self, admin: str) -> None:
        self._admin = admin.encode()

    @property
    def wanted(self) -> bool:
        return bool(self._admin)

    def session(self, uid: str, prompt_uid: str) -> str:
        """The key of one trajectory; '' where none are wanted."""
        if not self._admin:
            return ""
        digest = hmac.digest(self._admin, f"{uid}/{prompt_uid}".encode(), sha256)
        return PREFIX + urlsafe_b64encode(digest[:24]).decode()

    def check(self, headers: Iterable[tuple[bytes, bytes]], in_path: str, uid: str, prompt_uid: str) -> None:
        """Fault 401 unless one of the keys presented opens this route (`uid` is '' for the admin's own routes)."""
        if not self._admin:
            return
        valid = [self._admin] + ([self.session(uid, prompt_uid).encode()] if uid else [])
        presented = _presented(headers, in_path)
        if not any([hmac.compare_digest(one, key) for one in presented for key in valid]):
            what = "the key of this trajectory (init_trajectory gives it) or the admin key" if uid else "the admin key"
            raise Fault(401, f"{what} is required: in Authorization: Bearer, or x-api-key", "invalid_api_key")


def _presented(headers: Iterable[tuple[bytes, bytes]], in_path: str) -> list[bytes]:
    found = [in_path.encode()] if in_path else []
    for name, value in headers:
        if name == b"x-api-key":
            found.append(value)
        elif name == b"authorization":
            found.append(value[7:] if value[:7].lower() == b"bearer " else value)
    return found
