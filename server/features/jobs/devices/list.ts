// The devices that this machine's trainings may hold: GPUs, or places on the cores.
import { readdirSync } from 'node:fs'
import { type NvidiaGpu, readNvidiaGpus, visibleGpus } from '../../../../lib/nvidia-gpus.ts'

/** A memory that is not known is null: nothing is compared with it. */
export interface Device {
  /** `GPU 0`, or `cpu` and `cpu0` on the cores. */
  name: string
  /** What its trainer gets as CUDA_VISIBLE_DEVICES; undefined: what this process has. */
  visible: string | undefined
  on: 'gpu' | 'cpu'
  /** Memory that a training may take of it. */
  memory_mb: number | null
  free_mb: number | null
}

interface Options {
  /** TUNERY_TRAINING_DEVICES. */
  names: readonly { name: string; memory_mb: number | null }[]
  /** False: the trainer's torch knows no GPU. */
  gpus: boolean
  cuda_visible_devices?: string | undefined
  read?: () => Promise<NvidiaGpu[] | undefined>
  /** The number of GPUs where their driver does not answer. */
  count?: () => number
}

export interface DeviceList {
  devices: Device[]
  /** Names of the setting that this machine has no device of. */
  missing: string[]
}

/** Reads the devices and their free memory. */
export async function readDevices(options: Options): Promise<DeviceList> {
  const { names, cuda_visible_devices } = options
  const all = names.every(({ name }) => isCores(name)) && names.length > 0 ? [] : await readGpus(options)
  if (names.length === 0) {
    const devices = visibleGpus(all, cuda_visible_devices).map((gpu) => deviceOf(gpu, null))
    return { devices: devices.length > 0 ? devices : [cores], missing: [] }
  }
  const devices: Device[] = []
  const missing: string[] = []
  for (const { name, memory_mb } of names) {
    const gpu = visibleGpus(all, name)[0]
    if (isCores(name)) devices.push({ name, visible: '', on: 'cpu', memory_mb, free_mb: memory_mb })
    else if (gpu) {
      const device = deviceOf(gpu, memory_mb)
      // A GPU may be named twice, by its number and its UUID.
      if (!devices.some(({ visible }) => visible === device.visible)) devices.push(device)
    }
    // nvidia-smi lists no parts of a GPU.
    else if (name.startsWith('MIG-')) devices.push({ name, visible: name, on: 'gpu', memory_mb, free_mb: memory_mb })
    else missing.push(name)
  }
  return { devices, missing }
}

const cores: Device = { name: 'cpu', visible: undefined, on: 'cpu', memory_mb: null, free_mb: null }
const isCores = (name: string) => name.startsWith('cpu')

type Gpu = Pick<NvidiaGpu, 'index' | 'uuid' | 'total_bytes' | 'free_bytes'>

async function readGpus({ gpus, read = readNvidiaGpus, count = countGpus }: Options): Promise<Gpu[]> {
  if (!gpus) return []
  const all = await read()
  const unknown = { uuid: '', total_bytes: null, free_bytes: null }
  return all ?? Array.from({ length: count() }, (_, index) => ({ index, ...unknown }))
}

function deviceOf({ index, uuid, total_bytes, free_bytes }: Gpu, most_mb: number | null): Device {
  const most = most_mb ?? Number.POSITIVE_INFINITY
  const limited = (bytes: number | null) => (bytes === null ? most_mb : Math.min(most, Math.floor(bytes / 1e6)))
  return {
    name: `GPU ${index}`,
    // CUDA may count in another order than the driver.
    visible: uuid || String(index),
    on: 'gpu',
    memory_mb: limited(total_bytes),
    free_mb: limited(free_bytes),
  }
}

const countGpus = () => readdirSync('/dev').filter((name) => /^nvidia\d+$/.test(name)).length
