"""A Ray cluster of several nodes on this machine, with devices that it only pretends to have.

Lines on standard input: `add MODEL NAME`, the first being the head, and `kill NAME`; each is
answered by the cluster's address. It ends with the input. A node's NAME stands in the environment
of its runs as NODE.
"""

import sys

from ray.cluster_utils import Cluster

COMMON = {
    "node_ip_address": "127.0.0.1",  # nothing listens on a public address
    "object_store_memory": 80 << 20,
    "include_log_monitor": False,
    "num_cpus": 1,
    "num_gpus": 1,
}
HEAD = {
    "include_dashboard": False,
    "no_monitor": True,
    "_system_config": {  # a node's death is noticed within seconds
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
        "prestart_worker_first_driver": False,
    },
}


def main():
    """Serves until its standard input closes."""
    cluster, nodes = Cluster(), {}
    for line in sys.stdin:
        what, *words = line.split()
        if what == "add":
            model, name = words
            own = {"resources": {f"accelerator_type:{model}": 1}, "env_vars": {"NODE": name}}
            nodes[name] = cluster.add_node(**COMMON, **own, **({} if nodes else HEAD))
        else:
            cluster.remove_node(nodes[words[0]], allow_graceful=False)
        print(cluster.address, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
