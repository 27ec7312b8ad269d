import type { Machine } from '../../../contract/machine.ts'
import { readNvidiaGpus } from '../../../lib/nvidia-gpus.ts'
import { createTtlCache } from '../../../lib/ttl-cache.ts'

const cache_ms = 5000

/** Returns a function that reads the NVIDIA GPUs; none without a driver that answers. */
export function createGpus(read = readNvidiaGpus): () => Promise<Machine['gpus']> {
  const cache = createTtlCache<Machine['gpus']>(cache_ms)
  const list = async () =>
    ((await read()) ?? []).map(({ name, total_bytes, used_bytes, utilization }) => ({
      name,
      memory_bytes: total_bytes,
      used_bytes,
      busy_percent: utilization === null ? null : Math.round(utilization * 100),
    }))
  return async () => (await cache.getOrLoad('all', list)) ?? []
}
