import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { Boxes, Upload } from 'lucide-react'
import { useState } from 'react'
import type { Model, TunedModel } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { formatBytes, formatCount, formatParameters } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { useMay } from '../../lib/session.ts'
import { BaseBadges, BaseWeights, NeedText, servedForm, useBases, useHubMachine } from '../../parts/base-weights.tsx'
import { Button, LinkButton, TextLink } from '../../ui/button.tsx'
import { Select } from '../../ui/choices.tsx'
import { FileDrop } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, FormError, Loaded, Status } from '../../ui/feedback.tsx'
import { Form, FormButtons, NameField } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { SearchInput } from '../../ui/search-input.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Message, RelativeTime } from '../../ui/values.tsx'

export default function ModelsPage() {
  const mayTrain = useMay('tuning:write')
  const [importing, setImporting] = useState(false)
  return (
    <Page
      title="Models"
      actions={
        mayTrain && (
          <>
            <Button icon={<Upload aria-hidden />} onClick={() => setImporting(true)}>
              Import adapter
            </Button>
            <LinkButton to="/jobs/new" variant="primary">
              New job
            </LinkButton>
          </>
        )
      }
    >
      <div className="grid gap-4">
        <Tuned />
        <Bases />
      </div>
      {importing && <ImportAdapter onClose={() => setImporting(false)} />}
    </Page>
  )
}

const tunedColumns: readonly Column<TunedModel>[] = [
  { id: 'name', header: 'Name', grow: true, cell: (each) => each.name },
  { id: 'method', header: 'Method', cell: (each) => <Badge>{each.method}</Badge> },
  { id: 'base', header: 'Base', from: 'md', cell: (each) => each.base_model_id },
  {
    id: 'check',
    header: 'Serving check',
    from: 'sm',
    cell: ({ comparison }) => (comparison ? <Status status={comparison.agrees ? 'passed' : 'failed'} /> : '–'),
  },
  { id: 'size', header: 'Size', align: 'right', from: 'lg', cell: (each) => formatBytes(each.size_mb * 1e6) },
  {
    id: 'created',
    header: 'Created',
    align: 'right',
    from: 'sm',
    cell: (each) => <RelativeTime time={each.created_at} />,
  },
]

function Tuned() {
  const mayRead = useMay('tuning:read')
  const { query, rows, more } = usePages(['models', 'list'], (options) => tunery.models.list({ limit: 50 }, options), {
    enabled: mayRead,
  })
  if (!mayRead) return null
  return (
    <Card title="Your models" flush>
      <Loaded query={query}>
        {() => (
          <Table
            label="Your models"
            columns={tunedColumns}
            rows={rows ?? []}
            rowId={({ id }) => id}
            link={({ id }) => ({ to: '/models/$modelId', params: { modelId: id } })}
            more={more}
            empty={
              <EmptyState compact icon={<Boxes aria-hidden />} title="No models yet">
                Train a base model on your examples to create one.
              </EmptyState>
            }
          />
        )}
      </Loaded>
    </Card>
  )
}

const hasDownloaded = ({ weights }: Model) => Number(weights.available)

const tasks = [
  { value: 'any', label: 'Any task' },
  { value: 'chat', label: 'Chat' },
  { value: 'code', label: 'Code' },
  { value: 'pictures', label: 'Images' },
  { value: 'thoughts', label: 'Thinking' },
  { value: 'embeddings', label: 'Embeddings' },
] as const
const sizes = [
  { value: 'any', label: 'Any size' },
  { value: '1b', label: 'Up to 1B' },
  { value: '4b', label: 'About 4B' },
  { value: '9b', label: 'About 9B' },
  { value: '30b', label: 'About 30B' },
  { value: 'larger', label: 'Larger' },
] as const
const uses = [
  { value: 'any', label: 'Any machine' },
  { value: 'lora', label: 'Trains here by lora' },
  { value: 'qlora', label: 'Trains here by qlora' },
  { value: 'full', label: 'Trains here in full' },
  { value: 'serve', label: 'Answers here' },
] as const
const knownOf = <T extends string>(choices: readonly { value: T }[], value: string | undefined): T =>
  choices.find((choice) => choice.value === value)?.value ?? ('any' as T)

function Bases() {
  const query = useBases()
  const machine = useHubMachine().data
  const search = useSearch({ from: '/shell/models' })
  const navigate = useNavigate()
  const change = (next: { [name in 'q' | 'task' | 'size' | 'fits']?: string | undefined }) =>
    void navigate({ to: '/models', search: (before) => ({ ...before, ...next }), replace: true, resetScroll: false })
  const choose = (name: 'task' | 'size' | 'fits') => (value: string) =>
    change({ [name]: value === 'any' ? undefined : value })
  const { q } = search
  const [task, size, use] = [knownOf(tasks, search.task), knownOf(sizes, search.size), knownOf(uses, search.fits)]
  const sought = (q ?? '').toLowerCase()
  const isShown = (model: Model) =>
    `${model.id} ${model.name} ${model.description} ${model.family ?? ''}`.toLowerCase().includes(sought) &&
    (task === 'any' || model.tasks.includes(task)) &&
    (size === 'any' || model.size === size) &&
    (use === 'any' || model.needs[use]?.fits === true)
  const best = machine?.recommended
  return (
    <Card
      title="Base models"
      description={
        best ? (
          <>
            For this machine:{' '}
            <TextLink to="/models/base/$" params={{ _splat: best.model_id }}>
              {best.model_id}
            </TextLink>
            . {best.why}
          </>
        ) : (
          'Open models to call and to train.'
        )
      }
      flush
    >
      <div className="flex flex-wrap gap-2 border-b border-edge px-4 py-3">
        <SearchInput
          className="w-56 max-sm:w-full"
          label="Search base models"
          value={q}
          onChange={(q) => change({ q })}
        />
        <div className="w-36 max-sm:w-full">
          <Select aria-label="Task" value={task} choices={tasks} onChange={choose('task')} />
        </div>
        <div className="w-36 max-sm:w-full">
          <Select aria-label="Size" value={size} choices={sizes} onChange={choose('size')} />
        </div>
        <div className="w-48 max-sm:w-full">
          <Select aria-label="Fits this machine" value={use} choices={uses} onChange={choose('fits')} />
        </div>
      </div>
      <Loaded query={query}>
        {({ models }) => (
          <Table
            label="Base models"
            empty={
              <EmptyState
                compact
                title="No base models match"
                action={
                  <Button onClick={() => change({ q: undefined, task: undefined, size: undefined, fits: undefined })}>
                    Clear filters
                  </Button>
                }
              />
            }
            rows={models.filter(isShown).toSorted((a, b) => hasDownloaded(b) - hasDownloaded(a))}
            rowId={({ id }) => id}
            link={({ id }) => ({ to: '/models/base/$', params: { _splat: id } })}
            columns={baseColumns}
          />
        )}
      </Loaded>
    </Card>
  )
}

const baseColumns: readonly Column<Model>[] = [
  {
    id: 'name',
    header: 'Model',
    grow: true,
    value: ({ id }) => id,
    cell: (model) => (
      <>
        <span title={model.description} className="flex flex-wrap items-center gap-1 whitespace-normal">
          <span className="min-w-0 wrap-anywhere">{model.id}</span>
          <BaseBadges model={model} />
        </span>
        {servedForm(model) && (
          <span className="mt-0.5 block max-w-xl text-xs font-normal whitespace-normal text-muted">
            <Message text={servedForm(model)} />
          </span>
        )}
      </>
    ),
  },
  {
    id: 'size',
    header: 'Parameters',
    align: 'right',
    from: 'sm',
    value: ({ params_billions }) => params_billions,
    cell: ({ params_billions }) => formatParameters(params_billions),
  },
  {
    id: 'context',
    header: 'Context',
    align: 'right',
    from: 'lg',
    value: ({ context_length }) => context_length,
    cell: ({ context_length }) => formatCount(context_length),
  },
  {
    id: 'lora',
    header: 'To train',
    align: 'right',
    from: 'md',
    value: ({ needs }) => needs.lora?.mb,
    cell: ({ needs }) => <NeedText need={needs.lora} />,
  },
  {
    id: 'serve',
    header: 'To answer',
    align: 'right',
    from: 'lg',
    value: ({ needs }) => needs.serve?.mb,
    cell: ({ needs }) => <NeedText need={needs.serve} />,
  },
  {
    id: 'weights',
    header: 'Weights',
    align: 'right',
    value: ({ weights }) => weights.size_mb,
    cell: (model) => <BaseWeights model={model} />,
  },
]

function ImportAdapter({ onClose }: { onClose: () => void }) {
  const [file, setFile] = useState<File>()
  const [name, setName] = useState('')
  const client = useQueryClient()
  const bring = useMutation({
    mutationFn: () => tunery.models.import(file!, name.trim() ? { name } : {}),
    onSuccess: async (made) => {
      await client.invalidateQueries({ queryKey: ['models'] })
      toast.good('Adapter imported', made.name)
      onClose()
    },
  })
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Import adapter"
      description="Upload a zip of a PEFT folder with adapter_config.json and adapter_model.safetensors."
    >
      <Form onSubmit={() => bring.mutate()}>
        <FileDrop
          title={file ? file.name : 'Drop a zip file here'}
          accept=".zip"
          onFile={setFile}
          busy={bring.isPending}
        />
        <NameField optional error={fieldError(bring.error, 'name')} value={name} onChange={setName} />
        <FormError error={bring.error} fields={['name']} />
        <FormButtons onCancel={onClose} busy={bring.isPending} missing={!file && 'Choose a file.'}>
          Import
        </FormButtons>
      </Form>
    </Dialog>
  )
}
