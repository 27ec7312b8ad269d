// The NVIDIA GPUs of this machine, as nvidia-smi reports them.
import { execFile } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { promisify } from 'node:util'

/** A figure that the driver does not report is null. */
export interface NvidiaGpu {
  index: number
  uuid: string
  name: string
  total_bytes: number | null
  used_bytes: number | null
  free_bytes: number | null
  /** Share of the time that it computed lately, 0 to 1. */
  utilization: number | null
}

const timeout_ms = 5000
const fields = 'index,uuid,name,memory.total,memory.used,memory.free,utilization.gpu'

/** Resolves with no GPUs on a machine without one, and with undefined if there is one whose driver does not answer. */
export async function readNvidiaGpus(command = 'nvidia-smi', devices = '/dev'): Promise<NvidiaGpu[] | undefined> {
  if (!readdirSync(devices).some((name) => /^nvidia\d+$/.test(name))) return []
  try {
    const args = [`--query-gpu=${fields}`, '--format=csv,noheader,nounits']
    const { stdout } = await promisify(execFile)(command, args, { timeout: timeout_ms })
    return stdout.trim().split('\n').filter(Boolean).map(parseGpu)
  } catch {
    return undefined
  }
}

/** Reads `0, GPU-8a…, NVIDIA H100 80GB HBM3, 81559, 1024, 80535, 17`, memory in MiB. */
export function parseGpu(line: string): NvidiaGpu {
  const cells = line.split(',').map((cell) => cell.trim())
  const number = (at: number) => (/^\d+$/.test(cells[at] ?? '') ? Number(cells[at]) : null)
  const bytes = (at: number) => (number(at) === null ? null : number(at)! * 2 ** 20)
  const busy = number(6)
  return {
    index: Number(cells[0]),
    uuid: cells[1] ?? '',
    name: cells[2] ?? '',
    total_bytes: bytes(3),
    used_bytes: bytes(4),
    free_bytes: bytes(5),
    utilization: busy === null ? null : busy / 100,
  }
}

/** Those of these GPUs that a value of CUDA_VISIBLE_DEVICES leaves, in its order: numbers, or beginnings of UUIDs. */
export function visibleGpus<T extends Pick<NvidiaGpu, 'index' | 'uuid'>>(gpus: T[], visible: string | undefined): T[] {
  if (visible === undefined) return gpus
  const chosen: T[] = []
  for (const name of visible.split(',').map((part) => part.trim())) {
    const gpu = gpus.find(({ index, uuid }) => (/^\d+$/.test(name) ? index === Number(name) : isUuidOf(name, uuid)))
    // As CUDA does: what stands behind an unknown name is not seen.
    if (!gpu) break
    if (!chosen.includes(gpu)) chosen.push(gpu)
  }
  return chosen
}

const isUuidOf = (name: string, uuid: string) => name.length > 4 && uuid.startsWith(name)
