"""Settings of a node: their sections, all of them together, and how they are read.

A `[cluster]` table with members, the same on every node, founds a cluster of these; `join` looks for one; a node with
neither founds one of itself. Whatever becomes of nodes and logs is decided by the cluster, not here.

Each is loaded when it is asked for: clients and tools need the addresses, and not what checks settings.
"""

from typing import TYPE_CHECKING

from mirrorlog.lazy_names import loaded_late

if TYPE_CHECKING:
    from mirrorlog.config.addresses import CLIENT_PORT as CLIENT_PORT
    from mirrorlog.config.addresses import COPIES_MAX as COPIES_MAX
    from mirrorlog.config.addresses import RECORD_BYTES_MAX as RECORD_BYTES_MAX
    from mirrorlog.config.addresses import split_address as split_address
    from mirrorlog.config.cluster import LOG_NUMBER_MAX as LOG_NUMBER_MAX
    from mirrorlog.config.cluster import SEEDS_MAX as SEEDS_MAX
    from mirrorlog.config.cluster import ClusterSettings as ClusterSettings
    from mirrorlog.config.cluster import LogAssignment as LogAssignment
    from mirrorlog.config.cluster import Member as Member
    from mirrorlog.config.loading import ENVIRONMENT_PREFIX as ENVIRONMENT_PREFIX
    from mirrorlog.config.loading import Loaded as Loaded
    from mirrorlog.config.loading import check_private as check_private
    from mirrorlog.config.loading import load as load
    from mirrorlog.config.loading import load_settings as load_settings
    from mirrorlog.config.sections import GrpcSettings as GrpcSettings
    from mirrorlog.config.sections import HaSettings as HaSettings
    from mirrorlog.config.sections import HttpSettings as HttpSettings
    from mirrorlog.config.sections import LimitSettings as LimitSettings
    from mirrorlog.config.sections import ListenSettings as ListenSettings
    from mirrorlog.config.sections import LogSettings as LogSettings
    from mirrorlog.config.sections import NodeSettings as NodeSettings
    from mirrorlog.config.sections import TlsSettings as TlsSettings
    from mirrorlog.config.settings import Settings as Settings
    from mirrorlog.config.values import PATTERN_WORDS as PATTERN_WORDS
    from mirrorlog.config.values import Flush as Flush
    from mirrorlog.config.values import Locator as Locator

__getattr__, __dir__ = loaded_late(
    __name__,
    {
        "addresses": "CLIENT_PORT COPIES_MAX RECORD_BYTES_MAX split_address",
        "cluster": "ClusterSettings LOG_NUMBER_MAX LogAssignment Member SEEDS_MAX",
        "loading": "ENVIRONMENT_PREFIX Loaded check_private load load_settings",
        "sections": "GrpcSettings HaSettings HttpSettings LimitSettings ListenSettings LogSettings NodeSettings "
        "TlsSettings",
        "settings": "Settings",
        "values": "Flush Locator PATTERN_WORDS",
    },
)
