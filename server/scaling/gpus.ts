// The NVIDIA GPUs that replicas can be placed on.
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'

export interface Gpu {
  index: number
  uuid: string
  name: string
  free_bytes: number
  total_bytes: number
  /** Share of the time that it computed lately, 0 to 1; null: unknown. */
  utilization: number | null
}

export type ReadGpus = () => Promise<Gpu[]>

const timeout_ms = 5000

/** Reads them with nvidia-smi; none without a driver that answers. */
export const readGpus: ReadGpus = async () => {
  if (!existsSync('/dev/nvidia0')) return []
  const args = ['--query-gpu=index,uuid,name,memory.free,memory.total,utilization.gpu', '--format=csv,noheader,nounits']
  try {
    const { stdout } = await promisify(execFile)('nvidia-smi', args, { timeout: timeout_ms })
    return stdout.trim().split('\n').filter(Boolean).map(parse)
  } catch {
    return []
  }
}

/** `0, GPU-8a…, NVIDIA H100 80GB HBM3, 80000, 81559, 17`, memory in MiB. */
export function parse(line: string): Gpu {
  const [index = '', uuid = '', name = '', free = '', total = '', busy = ''] = line
    .split(',')
    .map((cell) => cell.trim())
  return {
    index: Number(index),
    uuid,
    name,
    free_bytes: Number(free) * 2 ** 20 || 0,
    total_bytes: Number(total) * 2 ** 20 || 0,
    utilization: /^\d+$/.test(busy) ? Number(busy) / 100 : null,
  }
}

/** `NVIDIA H100 80GB HBM3` is the class `nvidia-h100-80gb-hbm3`. */
export const classOf = ({ name }: Pick<Gpu, 'name'>) =>
  name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-|-$/g, '')
