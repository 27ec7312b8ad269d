import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import type { Machine } from '../../contract/machine.ts'
import { createTtlCache } from '../../lib/ttl-cache.ts'

const cache_ms = 5000
const timeout_ms = 5000
const fields = 'name,memory.total,memory.used,utilization.gpu'

/** Returns a function that reads the NVIDIA GPUs; none without a driver that answers. */
export function createGpus(device = '/dev/nvidia0', command = 'nvidia-smi'): () => Promise<Machine['gpus']> {
  const cache = createTtlCache<Machine['gpus']>(cache_ms)
  async function read(): Promise<Machine['gpus']> {
    if (!existsSync(device)) return []
    const args = [`--query-gpu=${fields}`, '--format=csv,noheader,nounits']
    try {
      const { stdout } = await promisify(execFile)(command, args, { timeout: timeout_ms })
      return stdout.trim().split('\n').filter(Boolean).map(parse)
    } catch {
      return []
    }
  }
  return async () => (await cache.getOrLoad('all', read)) ?? []
}

/** `NVIDIA H100, 81559, 1024, 17`, memory in MiB. A figure that the driver does not know is `[N/A]`. */
function parse(line: string): Machine['gpus'][number] {
  const [name, total, used, busy] = line.split(',').map((cell) => cell.trim())
  const number = (text: string | undefined) => (text !== undefined && /^\d+$/.test(text) ? Number(text) : null)
  const bytes = (text: string | undefined) => (number(text) === null ? null : number(text)! * 2 ** 20)
  return {
    name: name ?? '',
    memory_bytes: bytes(total),
    used_bytes: bytes(used),
    busy_percent: number(busy),
  }
}
