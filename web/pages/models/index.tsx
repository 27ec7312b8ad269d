import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Boxes, Download, Upload } from 'lucide-react'
import { useState } from 'react'
import type { Model, TunedModel } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { formatBytes, formatCompact } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button, LinkButton } from '../../ui/button.tsx'
import { FileDrop } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, FormError, Loaded, Progress, Status } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { toast, toastError } from '../../ui/toast.tsx'
import { RelativeTime } from '../../ui/values.tsx'

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
        <Bases mayTrain={mayTrain} />
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

const isMoving = ({ download }: Model) =>
  download !== null && ['queued', 'downloading', 'converting'].includes(download.status)

function Bases({ mayTrain }: { mayTrain: boolean }) {
  const client = useQueryClient()
  const query = useQuery({
    queryKey: ['hub', 'list'],
    queryFn: ({ signal }) => tunery.hub.list({ signal }),
    refetchInterval: ({ state }) => (state.data?.models.some(isMoving) ? refresh_ms : false),
  })
  const refresh = () => client.invalidateQueries({ queryKey: ['hub'] })
  const start = useMutation({
    mutationFn: (id: string) => tunery.hub.startDownload(id),
    onSuccess: refresh,
    onError: toastError('Could not start the download'),
  })
  const cancel = useMutation({
    mutationFn: (id: string) => tunery.hub.cancelDownload(id),
    onSuccess: refresh,
    onError: toastError('Could not cancel the download'),
  })
  const [text, setText] = useState('')
  const isFound = ({ id, name, description }: Model) =>
    `${id} ${name} ${description}`.toLowerCase().includes(text.trim().toLowerCase())
  return (
    <Card
      title="Base models"
      description="Open models to train and to call."
      actions={
        <Input
          type="search"
          aria-label="Search base models"
          placeholder="Search base models"
          className="w-56"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
      }
      flush
    >
      <Loaded query={query}>
        {({ models }) => (
          <Table
            label="Base models"
            empty={<EmptyState compact title={`No base model matches “${text}”`} />}
            rows={models.filter(isFound).toSorted((a, b) => Number(b.weights.available) - Number(a.weights.available))}
            rowId={({ id }) => id}
            columns={[
              {
                id: 'name',
                header: 'Model',
                grow: true,
                value: ({ id }) => id,
                cell: (each) => (
                  <>
                    <span title={each.description} className="flex flex-wrap items-center gap-1 whitespace-normal">
                      <span className="min-w-0 wrap-anywhere">{each.id}</span>
                      {each.category !== 'language' && <Badge>{each.category}</Badge>}
                      {each.recommended && <Badge tone="accent">recommended</Badge>}
                      {each.weights.available && each.methods.length === 0 && (
                        <Badge tone="warn">too large to train here</Badge>
                      )}
                      {each.pictures && (
                        <Badge tone={each.pictures.served ? 'good' : 'warn'}>
                          {each.pictures.served ? 'reads images' : 'text only'}
                        </Badge>
                      )}
                    </span>
                    <ServedForm weights={each.weights} />
                    {each.pictures?.notes.map((note) => (
                      <Note key={note} text={note} />
                    ))}
                  </>
                ),
              },
              {
                id: 'size',
                header: 'Parameters',
                align: 'right',
                from: 'sm',
                value: (each) => each.params_billions,
                cell: (each) => formatCompact(each.params_billions * 1e9),
              },
              {
                id: 'context',
                header: 'Context',
                align: 'right',
                from: 'lg',
                cell: (each) => formatCompact(each.context_length),
              },
              { id: 'license', header: 'License', from: 'lg', cell: (each) => each.license },
              {
                id: 'methods',
                header: 'Methods',
                from: 'md',
                cell: ({ methods }) => (
                  <span className="flex gap-1">
                    {methods.length > 0 ? methods.map((each) => <Badge key={each}>{each}</Badge>) : '–'}
                  </span>
                ),
              },
              {
                id: 'weights',
                header: 'Weights',
                align: 'right',
                cell: (each) => (
                  <Weights
                    model={each}
                    mayTrain={mayTrain}
                    busy={start.isPending && start.variables === each.id}
                    onStart={() => start.mutate(each.id)}
                    onCancel={() => cancel.mutate(each.id)}
                  />
                ),
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  )
}

/** In which form the weights answer, and how far that is from the original. */
function ServedForm({ weights: { keep_original, eight_bits, eight_bits_problem, available } }: Pick<Model, 'weights'>) {
  if (available && keep_original) return <Note text="Served with its original weights." />
  if (eight_bits_problem) return <Note text={`Served with its original weights. ${eight_bits_problem}`} />
  if (!eight_bits) return null
  const { size_mb, original_type, distance } = eight_bits
  return (
    <Note
      text={
        `Served in 8-bit (${formatBytes(size_mb * 1e6)}, from ${original_type}): same top token for ` +
        `${(100 * distance.same_top).toFixed(1)}% of ${distance.tokens} tokens, ${distance.divergence} nats apart on average.`
      }
    />
  )
}

/** What is to be known of a model; commands stand in backticks. */
const Note = ({ text }: { text: string }) => (
  <span className="mt-0.5 block max-w-xl text-xs whitespace-normal text-muted">
    {text.split('`').map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}
  </span>
)

function Weights({
  model,
  mayTrain,
  busy,
  onStart,
  onCancel,
}: {
  model: Model
  mayTrain: boolean
  busy: boolean
  onStart: () => void
  onCancel: () => void
}) {
  const { weights, download } = model
  if (weights.available) return <Status status="downloaded" tone="good" />
  if (download && isMoving(model))
    return (
      <span className="flex items-center justify-end gap-2">
        <Progress
          className="w-24"
          value={download.status === 'downloading' ? download.progress : null}
          label={`${model.name}: ${download.status}`}
        />
        {mayTrain && (
          <Button size="sm" variant="quiet" onClick={onCancel}>
            Cancel download
          </Button>
        )}
      </span>
    )
  return (
    <span className="flex items-center justify-end gap-2">
      {download?.error && <Badge tone="bad">failed</Badge>}
      <span title={download?.error?.message ?? weights.how_to_get ?? undefined}>
        <Button size="sm" icon={<Download aria-hidden />} busy={busy} disabled={!mayTrain} onClick={onStart}>
          {weights.size_mb ? `Download ${formatBytes(weights.size_mb * 1e6)}` : 'Download'}
        </Button>
      </span>
    </span>
  )
}

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
        <Field label="Name" optional error={fieldError(bring.error, 'name')}>
          <Input value={name} onChange={(event) => setName(event.target.value)} maxLength={200} />
        </Field>
        <FormError error={bring.error} fields={['name']} />
        <FormButtons onCancel={onClose} busy={bring.isPending} missing={!file && 'Choose a file.'}>
          Import
        </FormButtons>
      </Form>
    </Dialog>
  )
}
