// Columns that the reader adds to the list of jobs: hyperparameters, what was measured, and their own metadata.
import { Columns3 } from 'lucide-react'
import { useState } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { formatBytes, formatCompact, formatDuration, formatNumber, none } from '../../lib/format.ts'
import { settingLabel } from '../../lib/jobs.ts'
import { DatasetName } from '../../parts/names.tsx'
import { Button } from '../../ui/button.tsx'
import { Popover } from '../../ui/popups.tsx'
import type { Column } from '../../ui/table.tsx'
import { Checkbox } from '../../ui/toggles.tsx'

const key = 'tunery.job-columns'

function read(): string[] {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(key) ?? '[]')
    return Array.isArray(kept) ? kept.filter((each) => typeof each === 'string') : []
  } catch {
    return []
  }
}

/** Which columns were added, the same tomorrow. */
export function useChosenColumns() {
  const [chosen, setChosen] = useState(read)
  const change = (next: string[]) => {
    setChosen(next)
    try {
      localStorage.setItem(key, JSON.stringify(next))
    } catch {
      // A browser that keeps nothing: the choice lasts until the page is left.
    }
  }
  return [chosen, change] as const
}

const groups = ['training_config', 'lora_config', 'method_options', 'evaluation_config'] as const

/** `training_config.epochs`, `metadata.team`. */
const settingOf = (job: Job, id: string): unknown => {
  const [group, name] = splitId(id)
  if (group === 'metadata') return job.metadata[name]
  const settings = job.resolved_config[group as (typeof groups)[number]] as Record<string, { value: unknown }> | null
  return settings?.[name]?.value
}
/** The name of metadata may have dots. */
const splitId = (id: string): [group: string, name: string] => [
  id.slice(0, id.indexOf('.')),
  id.slice(id.indexOf('.') + 1),
]

const textOf = (value: unknown): string =>
  typeof value === 'number'
    ? formatNumber(value, 6)
    : Array.isArray(value)
      ? value.every((each) => typeof each === 'string') && value.length > 0
        ? value.join(', ')
        : String(value.length)
      : typeof value === 'boolean' || typeof value === 'string'
        ? String(value)
        : none

/** What is no setting. */
const others: readonly (Column<Job> & { header: string })[] = [
  { id: 'dataset', header: 'Dataset', cell: ({ dataset_id }) => <DatasetName id={dataset_id} /> },
  {
    id: 'tokens',
    header: 'Trained tokens',
    align: 'right',
    value: ({ trained_tokens }) => trained_tokens,
    cell: ({ trained_tokens }) => formatCompact(trained_tokens),
  },
  {
    id: 'seconds',
    header: 'Training time',
    align: 'right',
    value: ({ metrics }) => metrics.train_seconds,
    cell: ({ metrics }) => formatDuration(metrics.train_seconds),
  },
  {
    id: 'memory',
    header: 'Peak memory',
    align: 'right',
    value: ({ metrics }) => metrics.peak_memory_mb,
    cell: ({ metrics }) => formatBytes(metrics.peak_memory_mb === undefined ? undefined : metrics.peak_memory_mb * 1e6),
  },
]

/** The columns with these ids; what no job has any more is left out. */
export const chosenColumnsOf = (chosen: readonly string[]): Column<Job>[] =>
  chosen.flatMap((id): Column<Job>[] => {
    const other = others.find((each) => each.id === id)
    if (other) return [{ ...other, id: `chosen ${id}` }]
    const [group, name] = splitId(id)
    if (group !== 'metadata' && !(groups as readonly string[]).includes(group)) return []
    const isText = group === 'metadata'
    return [
      {
        id: `chosen ${id}`,
        header: isText ? name : settingLabel(name),
        align: isText ? 'left' : 'right',
        value: (job) => {
          const value = settingOf(job, id)
          return typeof value === 'number' || typeof value === 'string' ? value : undefined
        },
        cell: (job) => <span className="block max-w-48 truncate">{textOf(settingOf(job, id))}</span>,
      },
    ]
  })

/** The button with what can be added, of the jobs that are listed. */
export function ChooseColumns({
  jobs,
  chosen,
  onChange,
}: {
  jobs: readonly Job[]
  chosen: readonly string[]
  onChange: (chosen: string[]) => void
}) {
  const settings = groups.flatMap((group) => {
    const names = new Set(jobs.flatMap(({ resolved_config }) => Object.keys(resolved_config[group] ?? {})))
    return [...names].filter((name) => name !== 'objective').map((name) => `${group}.${name}`)
  })
  const metadata = [...new Set(jobs.flatMap((job) => Object.keys(job.metadata)))]
    .sort()
    .map((name) => `metadata.${name}`)
  // Where they differ is what one compares jobs by.
  const differs = (id: string) => new Set(jobs.map((job) => JSON.stringify(settingOf(job, id)))).size > 1
  const differing = settings.filter(differs)
  const toggle = (id: string, on: boolean) => onChange(on ? [...chosen, id] : chosen.filter((each) => each !== id))
  const list = (title: string, entries: readonly { id: string; label: string }[]) =>
    entries.length > 0 && (
      <fieldset className="grid gap-1.5">
        <legend className="mb-1 text-sm text-muted">{title}</legend>
        {entries.map(({ id, label }) => (
          <Checkbox key={id} label={label} checked={chosen.includes(id)} onChange={(on) => toggle(id, on)} />
        ))}
      </fieldset>
    )
  const entriesOf = (ids: readonly string[]) => ids.map((id) => ({ id, label: settingLabel(splitId(id)[1]) }))
  return (
    <Popover
      align="end"
      title="Columns"
      className="max-h-[min(28rem,var(--available-height))] w-64 overflow-y-auto"
      trigger={<Button icon={<Columns3 aria-hidden />}>Columns{chosen.length > 0 && ` (${chosen.length})`}</Button>}
    >
      <div className="grid gap-4">
        {list('Settings that differ', entriesOf(differing))}
        {list(
          'Metadata',
          metadata.map((id) => ({ id, label: splitId(id)[1] })),
        )}
        {list(
          'Result',
          others.map(({ id, header }) => ({ id, label: header })),
        )}
        {list('Other settings', entriesOf(settings.filter((id) => !differs(id))))}
        {chosen.length > 0 && (
          <Button size="sm" onClick={() => onChange([])}>
            Reset columns
          </Button>
        )}
      </div>
    </Popover>
  )
}
