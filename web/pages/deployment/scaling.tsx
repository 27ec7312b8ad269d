import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useState } from 'react'
import type { Scaling } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { formatCount, formatPercent } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { Chart } from '../../ui/chart.tsx'
import { Select } from '../../ui/choices.tsx'
import { FormError, Loaded, Notice, Status } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input, NumberInput } from '../../ui/field.tsx'
import { Card, Stat } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Message, RelativeTime } from '../../ui/values.tsx'

const keyOf = (name: string) => ['deployments', name, 'scaling']

/** The replicas of a deployment: how many, where, since when and why. */
export function ScalingCard({ name }: { name: string }) {
  const mayWrite = useMay('deployments:write')
  const [editing, setEditing] = useState(false)
  const client = useQueryClient()
  const query = useQuery({
    queryKey: keyOf(name),
    queryFn: ({ signal }) => tunery.deployments.scaling.get(name, { signal }),
    refetchInterval: ({ state }) => (state.data?.scaling ? refresh_ms : 12 * refresh_ms),
  })
  const refresh = () => client.invalidateQueries({ queryKey: ['deployments', name] })
  const actions = mayWrite && query.data && (
    <div className="flex gap-2">
      {query.data.scaling && (
        <ConfirmDialog
          trigger={<Button>Stop scaling</Button>}
          title={`Stop scaling ${name}?`}
          action="Stop scaling"
          danger={false}
          onConfirm={async () => {
            await tunery.deployments.scaling.remove(name)
            await refresh()
          }}
        >
          The shared engine serves it again. Replicas finish their requests first.
        </ConfirmDialog>
      )}
      <Button onClick={() => setEditing(true)}>{query.data.scaling ? 'Edit scaling' : 'Add replicas'}</Button>
    </div>
  )
  return (
    <Card title="Replicas" actions={actions}>
      <Loaded query={query}>
        {(state) => (
          <>
            {state.scaling ? (
              <Replicas state={state} />
            ) : (
              <p className="text-muted">
                Runs on the shared engine. Dedicated replicas scale with its load, down to zero if you like.
              </p>
            )}
            {editing && <ScalingDialog state={state} onClose={() => setEditing(false)} refresh={refresh} />}
          </>
        )}
      </Loaded>
    </Card>
  )
}

function Replicas({ state }: { state: Scaling }) {
  const { scaling, replicas, in_flight, waiting, utilization, reason, limit, error, decisions } = state
  return (
    <div className="grid gap-6">
      {error && (
        <Notice tone="bad" title="A replica failed to start">
          <Message text={error} />
        </Notice>
      )}
      {limit && <Notice tone="warn">{limit}</Notice>}
      <dl className="grid grid-cols-2 gap-4 sm:grid-cols-4">
        <Stat
          label="Ready"
          value={formatCount(replicas.ready)}
          note={
            `${replicas.desired} requested, ` +
            `${scaling!.min_replicas} to ${scaling!.max_replicas} on ${state.instance_type}`
          }
        />
        <Stat
          label="In progress"
          value={formatCount(in_flight)}
          note={`target ${scaling!.target_requests_per_replica} per replica`}
        />
        <Stat label="Waiting" value={formatCount(waiting)} />
        {scaling!.target_gpu_utilization !== null && (
          <Stat
            label="Utilization"
            value={formatPercent(utilization)}
            note={`target ${scaling!.target_gpu_utilization}%`}
          />
        )}
      </dl>
      {reason && <p className="text-sm text-muted">{reason}</p>}
      {replicas.items.length > 0 && (
        <Table
          label="Replicas"
          rows={replicas.items}
          rowId={({ id }) => id}
          columns={[
            { id: 'place', header: 'Place', grow: true, cell: (replica) => replica.place },
            { id: 'state', header: 'State', cell: (replica) => <Status status={replica.state} /> },
            {
              id: 'requests',
              header: 'In progress',
              align: 'right',
              cell: (replica) => formatCount(replica.in_flight),
            },
            {
              id: 'since',
              header: 'Since',
              align: 'right',
              cell: (replica) => <RelativeTime time={replica.started_at} />,
            },
          ]}
        />
      )}
      {decisions.length > 0 && (
        <>
          <Chart
            title="Replicas over time"
            xLabel="Time"
            yLabel="Replicas"
            time
            height={160}
            formatY={(value) => (Number.isInteger(value) ? formatCount(value) : '')}
            series={[{ name: 'Replicas', ...stepsOf(state), color: 1 }]}
          />
          <Table
            label="Scaling history"
            rows={decisions.slice(0, 20)}
            rowId={({ at, to }) => `${at} ${to}`}
            columns={[
              { id: 'change', header: 'Replicas', cell: (decision) => `${decision.from} to ${decision.to}` },
              { id: 'reason', header: 'Reason', grow: true, cell: (decision) => decision.reason },
              { id: 'when', header: 'When', align: 'right', cell: (decision) => <RelativeTime time={decision.at} /> },
            ]}
          />
        </>
      )}
    </div>
  )
}

/** Each change as a step, up to now. */
function stepsOf({ decisions, replicas }: Scaling): { x: number[]; y: number[] } {
  const steps = decisions.toReversed().flatMap(({ at, from, to }) => {
    const x = Date.parse(at) / 1000
    return [
      { x, y: from },
      { x: x + 0.001, y: to },
    ]
  })
  steps.push({ x: Date.now() / 1000, y: replicas.desired })
  return { x: steps.map(({ x }) => x), y: steps.map(({ y }) => y) }
}

function ScalingDialog({
  state,
  onClose,
  refresh,
}: {
  state: Scaling
  onClose: () => void
  refresh: () => Promise<unknown>
}) {
  const { scaling, instance_types } = state
  const [min, setMin] = useState<number | null>(scaling?.min_replicas ?? 0)
  const [max, setMax] = useState<number | null>(scaling?.max_replicas ?? 2)
  const [requests, setRequests] = useState<number | null>(scaling?.target_requests_per_replica ?? 8)
  const [utilization, setUtilization] = useState<number | null>(scaling?.target_gpu_utilization ?? null)
  const [up, setUp] = useState(scaling?.scale_up_cooldown ?? '30s')
  const [down, setDown] = useState(scaling?.scale_down_cooldown ?? '5m')
  const [type, setType] = useState(state.instance_type ?? instance_types[0]?.name ?? 'cpu')
  const change = useMutation({
    mutationFn: () =>
      tunery.deployments.scaling.set(state.model, {
        scaling: {
          min_replicas: min ?? 0,
          max_replicas: max!,
          target_requests_per_replica: requests!,
          target_gpu_utilization: utilization,
          scale_up_cooldown: up.trim(),
          scale_down_cooldown: down.trim(),
        },
        instance_type: type,
      }),
    onSuccess: async () => {
      await refresh()
      toast.good('Scaling updated')
      onClose()
    },
  })
  const errorOf = (field: string) => fieldError(change.error, `scaling.${field}`)
  const fields = [
    'scaling.min_replicas',
    'scaling.max_replicas',
    'scaling.target_requests_per_replica',
    'scaling.target_gpu_utilization',
    'scaling.scale_up_cooldown',
    'scaling.scale_down_cooldown',
    'instance_type',
  ]
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Scale ${state.model}`}
      description="Dedicated engine processes that scale with the load."
    >
      <Form onSubmit={() => change.mutate()}>
        <div className="grid items-start gap-4 sm:grid-cols-2">
          <Field
            label="Min replicas"
            help="With 0, the first request waits for a start."
            error={errorOf('min_replicas')}
          >
            <NumberInput value={min} onChange={setMin} min={0} max={64} step={1} />
          </Field>
          <Field label="Max replicas" error={errorOf('max_replicas')}>
            <NumberInput value={max} onChange={setMax} min={1} max={64} step={1} />
          </Field>
          <Field
            label="Requests per replica"
            help="In progress or waiting at a time."
            error={errorOf('target_requests_per_replica')}
          >
            <NumberInput value={requests} onChange={setRequests} min={1} max={256} step={1} />
          </Field>
          <Field
            label="Target utilization (%)"
            optional
            help="Share of its GPU or cores. The higher demand wins."
            error={errorOf('target_gpu_utilization')}
          >
            <NumberInput value={utilization} onChange={setUtilization} min={1} max={100} step={5} />
          </Field>
          <Field label="Scale-up cooldown" help="For example 30s, 5m or 1h." error={errorOf('scale_up_cooldown')}>
            <Input value={up} onChange={({ target }) => setUp(target.value)} />
          </Field>
          <Field label="Scale-down cooldown" error={errorOf('scale_down_cooldown')}>
            <Input value={down} onChange={({ target }) => setDown(target.value)} />
          </Field>
        </div>
        <Field label="Instance type" error={fieldError(change.error, 'instance_type')}>
          <Select
            value={type}
            onChange={setType}
            choices={instance_types.map(({ name, places, free }) => ({
              value: name,
              label: name,
              note: `${free} of ${places} places free`,
            }))}
          />
        </Field>
        <FormError error={change.error} fields={fields} />
        <FormButtons
          onCancel={onClose}
          busy={change.isPending}
          missing={max === null ? 'Enter the max replicas.' : requests === null && 'Enter the requests per replica.'}
        >
          Save
        </FormButtons>
      </Form>
    </Dialog>
  )
}
