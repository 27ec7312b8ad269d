import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { useState } from 'react'
import type { LineageStep, TunedModelDetails } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { formatBytes, formatNumber } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { Button, LinkButton, TextLink } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, FormError, Loaded, Notice, Status } from '../../ui/feedback.tsx'
import { Field, Form, Input, Textarea } from '../../ui/field.tsx'
import { Card, Facts, Page } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'
import { Shares } from './shares.tsx'

export default function ModelPage() {
  const { modelId } = useParams({ from: '/shell/models/$modelId' })
  const query = useQuery({
    queryKey: ['models', modelId],
    queryFn: ({ signal }) => tunery.models.get(modelId, { signal }),
  })
  return (
    <Page
      title={query.data?.name ?? 'Model'}
      back={{ to: '/models', label: 'Models' }}
      description={query.data?.description}
      actions={query.data && <Actions model={query.data} />}
    >
      <Loaded query={query}>
        {(model) => (
          <div className="grid gap-4">
            <div className="grid items-start gap-4 lg:grid-cols-2">
              <About model={model} />
              <Check model={model} />
            </div>
            <History model={model} />
            <Uses model={model} />
            <Shares model={model} />
          </div>
        )}
      </Loaded>
    </Page>
  )
}

function Actions({ model }: { model: TunedModelDetails }) {
  const mayTrain = useMay('tuning:write')
  const navigate = useNavigate()
  const client = useQueryClient()
  const [editing, setEditing] = useState(false)
  return (
    <>
      {mayTrain && (
        <>
          <ConfirmDialog
            trigger={<Button>Delete</Button>}
            title={`Delete ${model.name}?`}
            action="Delete model"
            onConfirm={async () => {
              await tunery.models.delete(model.id)
              await client.invalidateQueries({ queryKey: ['models'] })
              await navigate({ to: '/models' })
            }}
          >
            Its weights are deleted. Exports of it stay until they expire. A model that something needs is refused.
          </ConfirmDialog>
          <Button onClick={() => setEditing(true)}>Rename</Button>
          <LinkButton to="/jobs/new" search={{ model: model.id }}>
            Train it further
          </LinkButton>
        </>
      )}
      <LinkButton to="/exports" search={{ model: model.id }}>
        Export
      </LinkButton>
      <LinkButton to="/evaluations" search={{ model: model.id, baseline: model.base_model_id }}>
        Evaluate
      </LinkButton>
      <LinkButton to="/playground" search={{ models: `${model.base_model_id},${model.id}` }} variant="primary">
        Compare with its base
      </LinkButton>
      {editing && <Rename model={model} onClose={() => setEditing(false)} />}
    </>
  )
}

function Rename({ model, onClose }: { model: TunedModelDetails; onClose: () => void }) {
  const [name, setName] = useState(model.name)
  const [description, setDescription] = useState(model.description)
  const client = useQueryClient()
  const save = useMutation({
    mutationFn: () => tunery.models.update(model.id, { name, description }),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ['models'] })
      toast.good('Saved')
      onClose()
    },
  })
  const fields = ['name', 'description']
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="Name and notes">
      <Form onSubmit={() => save.mutate()}>
        <Field label="Name" error={fieldError(save.error, 'name')}>
          <Input value={name} onChange={(event) => setName(event.target.value)} maxLength={200} />
        </Field>
        <Field label="Notes" optional error={fieldError(save.error, 'description')}>
          <Textarea value={description} onChange={(event) => setDescription(event.target.value)} maxLength={2000} />
        </Field>
        <FormError error={save.error} fields={fields} />
        <div className="flex justify-end">
          <Button type="submit" variant="primary" busy={save.isPending} disabled={!name.trim()}>
            Save
          </Button>
        </div>
      </Form>
    </Dialog>
  )
}

function About({ model }: { model: TunedModelDetails }) {
  const { id, kind, base_model_id, method, size_mb, job_id, created_at, metadata } = model
  return (
    <Card title="Model">
      <Facts
        facts={[
          ['Id', <Code key="id">{id}</Code>],
          ['Kind', kind === 'adapter' ? 'an adapter on its base' : 'whole weights'],
          ['Base', <Code key="base">{base_model_id}</Code>],
          ['Method', <Badge key="method">{method}</Badge>],
          ['Size', formatBytes(size_mb * 1e6)],
          [
            'Job',
            job_id ? (
              <TextLink key="job" to="/jobs/$jobId" params={{ jobId: job_id }}>
                {job_id}
              </TextLink>
            ) : (
              'imported'
            ),
          ],
          ['Created', <RelativeTime key="created" time={created_at} />],
          ...Object.entries(metadata).map(([key, value]) => [key, value] as const),
        ]}
      />
    </Card>
  )
}

/** Whether the engine serves what the trainer trained. */
function Check({ model: { comparison } }: { model: TunedModelDetails }) {
  return (
    <Card
      title={
        <>
          Served as trained{' '}
          <Help word="this check">
            Training changes how likely each token is. The service compares that change as the trainer computed it with
            what the engine serves, on fixed rows. A model that disagrees cannot be deployed.
          </Help>
        </>
      }
    >
      {comparison ? (
        <div className="grid gap-3">
          <div>
            <Status status={comparison.agrees ? 'agrees' : 'disagrees'} tone={comparison.agrees ? 'good' : 'bad'} />
          </div>
          {comparison.problem && <Notice tone="bad">{comparison.problem}</Notice>}
          <Facts
            facts={[
              ['Rows', comparison.rows],
              ['Tokens', comparison.tokens],
              ['Change by training', `${formatNumber(comparison.change)} nats a token`],
              ['Engine is off by', `${formatNumber(comparison.difference)} nats a token`],
            ]}
          />
        </div>
      ) : (
        <EmptyState compact title="Not checked yet">
          It is checked when it is first deployed.
        </EmptyState>
      )}
    </Card>
  )
}

function History({ model: { lineage } }: { model: TunedModelDetails }) {
  return (
    <Card
      title="What it came from"
      description={
        <>
          Begun with <Code>{lineage.base_model_id}</Code>
        </>
      }
      flush
    >
      <Table
        label="What it came from"
        rows={lineage.steps}
        rowId={({ model_id }: LineageStep) => model_id}
        columns={[
          { id: 'name', header: 'Result', grow: true, cell: (each) => each.name ?? each.model_id },
          { id: 'method', header: 'Method', cell: (each) => (each.method ? <Badge>{each.method}</Badge> : 'imported') },
          { id: 'objective', header: 'Learned', from: 'md', cell: (each) => each.objective ?? '–' },
          {
            id: 'dataset',
            header: 'Dataset',
            from: 'sm',
            cell: (each) => each.dataset?.name ?? each.dataset?.id ?? '–',
          },
          {
            id: 'hash',
            header: 'Weights',
            from: 'lg',
            cell: (each) => (each.sha256 ? <Code>{each.sha256.slice(0, 12)}</Code> : '–'),
          },
          {
            id: 'job',
            header: 'Job',
            align: 'right',
            cell: (each) =>
              each.job_id ? (
                <TextLink to="/jobs/$jobId" params={{ jobId: each.job_id }}>
                  see it
                </TextLink>
              ) : (
                '–'
              ),
          },
        ]}
      />
    </Card>
  )
}

/** The names and exports that use it. */
function Uses({ model }: { model: TunedModelDetails }) {
  const deployments = useQuery({
    queryKey: ['deployments', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.deployments.list({ limit: 100 }, { signal }),
  })
  const exports = useQuery({
    queryKey: ['exports', 'list', { model: model.id }],
    queryFn: ({ signal }) => tunery.exports.list({ model: model.id, limit: 20 }, { signal }),
  })
  const own = deployments.data?.items.filter((each) => each.model === model.id) ?? []
  return (
    <Card title="Used by">
      <Facts
        facts={[
          [
            'Deployments',
            own.length > 0
              ? own.map(({ name }) => (
                  <TextLink key={name} to="/deployments/$name" params={{ name }} className="mr-3">
                    {name}
                  </TextLink>
                ))
              : 'none',
          ],
          [
            'Exports',
            exports.data?.items.length
              ? exports.data.items.map(({ id, format, quantization }) => (
                  <TextLink key={id} to="/exports" className="mr-3">
                    {[format, quantization].filter(Boolean).join(' ')}
                  </TextLink>
                ))
              : 'none',
          ],
        ]}
      />
    </Card>
  )
}
