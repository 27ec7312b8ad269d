// The NVIDIA GPUs that replicas can be placed on.
import { type NvidiaGpu, readNvidiaGpus } from '../../../lib/nvidia-gpus.ts'

/** Memory that the driver does not report counts as none. */
export type Gpu = Pick<NvidiaGpu, 'index' | 'uuid' | 'name' | 'utilization'> & {
  free_bytes: number
  total_bytes: number
}

export type ReadGpus = () => Promise<Gpu[]>

/** None without a driver that answers. */
export const readGpus: ReadGpus = async () => ((await readNvidiaGpus()) ?? []).map(gpuOf)

export const gpuOf = ({ index, uuid, name, utilization, free_bytes, total_bytes }: NvidiaGpu): Gpu => ({
  index,
  uuid,
  name,
  utilization,
  free_bytes: free_bytes ?? 0,
  total_bytes: total_bytes ?? 0,
})

/** `NVIDIA H100 80GB HBM3` is the class `nvidia-h100-80gb-hbm3`. */
export const classOf = ({ name }: Pick<Gpu, 'name'>) =>
  name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-|-$/g, '')
