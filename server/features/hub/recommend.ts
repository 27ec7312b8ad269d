// The base that is recommended for a machine: the largest that trains there beside its system, with the figures that
// chose it.
import type { HubMachine, Recommendation } from '../../../contract/hub.ts'
import { hasFastLayers, type Machine, type Sized, timed, trainingBytes, trainingSeconds } from './memory.ts'

/** A base that may be recommended. */
export interface Candidate extends Sized {
  id: string
  /** What was tried of its family; undefined where nothing was. */
  tested: Record<string, string> | undefined
}

const seconds_max = 3600

export const machineClasses: readonly (Machine & { name: string })[] = [
  { name: 'Laptop, 4 cores, 8 GB', device: 'cpu', bf16: false, cores: 4, memory_bytes: 8e9 },
  { name: 'Desktop, 8 cores, 16 GB', device: 'cpu', bf16: false, cores: 8, memory_bytes: 16e9 },
  { name: 'Server with bfloat16, 32 cores, 128 GB', device: 'cpu', bf16: true, cores: 32, memory_bytes: 128e9 },
  { name: 'GPU with 16 GB', device: 'gpu', bf16: true, cores: 8, memory_bytes: 16e9 },
  { name: 'GPU with 24 GB', device: 'gpu', bf16: true, cores: 8, memory_bytes: 24e9 },
  { name: 'GPU with 80 GB', device: 'gpu', bf16: true, cores: 16, memory_bytes: 80e9 },
]

/** Bytes that a training may take: of a machine's memory, the system and other programs have some. */
const forTraining = ({ device, memory_bytes }: Machine) =>
  device === 'gpu' ? memory_bytes : memory_bytes - Math.min(3e9, (3 / 8) * memory_bytes)

/** Whether the family was trained and served as trained; where nothing was tried, the families of the fast layers. */
const works = ({ tested, family }: Candidate) =>
  tested ? Object.values(tested).length > 0 && tested.lora === 'yes' : hasFastLayers(family)

const gigabytes = (bytes: number) => `${(bytes / 1e9).toFixed(1)} GB`

/** Null where no candidate fits. */
export function recommend(candidates: readonly Candidate[], machine: Machine): Recommendation | null {
  const [best] = candidates
    .filter(works)
    .map((base) => ({ base, bytes: trainingBytes(base, 'lora', machine), seconds: trainingSeconds(base, machine) }))
    .filter(({ bytes, seconds }) => bytes <= forTraining(machine) && (seconds ?? 0) <= seconds_max)
    .toSorted((a, b) => b.base.parameters - a.base.parameters)
  if (!best) return null
  const { base, bytes, seconds } = best
  const memory = `It takes ${gigabytes(bytes)} of ${gigabytes(machine.memory_bytes)} to train by lora`
  const minutes = seconds === null ? null : Math.max(1, Math.round(seconds / 60))
  const time = minutes === null ? '' : `, and about ${minutes} min for ${timed.text}`
  return {
    model_id: base.id,
    memory_mb: Math.round(bytes / 1e6),
    seconds: seconds === null ? null : Math.round(seconds),
    why: `${memory}${time}.`,
  }
}

const sizesOf = ({ device, cores, memory_bytes }: Machine) => ({
  device,
  cores,
  memory_mb: Math.round(memory_bytes / 1e6),
})

export const machineResponse = (
  candidates: readonly Candidate[],
  machine: Machine,
  free_disk_bytes: number,
): HubMachine => ({
  ...sizesOf(machine),
  free_disk_mb: Math.max(0, Math.round(free_disk_bytes / 1e6)),
  recommended: recommend(candidates, machine),
  classes: machineClasses.map(({ name, ...each }) => ({
    name,
    ...sizesOf(each),
    recommended: recommend(candidates, each),
  })),
})
