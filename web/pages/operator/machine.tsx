import { useQuery } from '@tanstack/react-query'
import type { Machine as MachineState } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatBytes, formatCount, formatDuration, formatNumber, formatPercent, plural } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { EmptyState, Loaded, Notice, Progress, Status } from '../../ui/feedback.tsx'
import { Card, Facts, Stat } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { Bytes, RelativeTime } from '../../ui/values.tsx'
import { SetUp } from './setup.tsx'

/** The machine: what is free, what runs, what waits. */
export function Machine() {
  const query = useQuery({
    queryKey: ['operator', 'machine'],
    queryFn: ({ signal }) => tunery.operator.machine({ signal }),
    refetchInterval: 2 * refresh_ms,
  })
  return (
    <div className="grid gap-4">
      <Loaded query={query}>
        {(machine) => (
          <>
            <Overview machine={machine} />
            <div className="grid items-start gap-4 lg:grid-cols-2">
              <Engine machine={machine} />
              <Queues machine={machine} />
              <Disk machine={machine} />
              <Replicas machine={machine} />
            </div>
          </>
        )}
      </Loaded>
      <SetUp />
    </div>
  )
}

function Overview({ machine }: { machine: MachineState }) {
  const { version, node, uptime_seconds, cores, load, memory, disk, gpus, trainings, training_devices } = machine
  const used = memory.total_bytes - memory.available_bytes
  return (
    <Card title="Machine" description={`Tunery ${version}, Node ${node}, up ${formatDuration(uptime_seconds)}`}>
      <div className="grid gap-5">
        <dl className="grid grid-cols-2 gap-4 sm:grid-cols-4">
          <Stat label="Load" value={formatNumber(load[0])} note={`on ${plural(cores, 'core')}`} />
          <Stat
            label="Memory free"
            value={formatBytes(memory.available_bytes)}
            note={
              <Share
                name="Memory"
                used={used}
                total={memory.total_bytes}
                tone={used > 0.9 * memory.total_bytes ? 'warn' : 'accent'}
              />
            }
          />
          <Stat
            label="Disk free"
            value={formatBytes(disk.free_bytes)}
            note={
              <Share
                name="Disk"
                used={disk.total_bytes - disk.free_bytes}
                total={disk.total_bytes}
                tone={disk.free_bytes < 2 * disk.kept_free_bytes ? 'warn' : 'accent'}
              />
            }
          />
          <Stat label="Jobs running" value={trainings} />
        </dl>
        {training_devices.length > 0 && (
          <dl className="grid gap-1" aria-label="Devices of trainings">
            {training_devices.map(({ name, memory_bytes, free_bytes, job_id }) => (
              <div key={name} className="flex flex-wrap justify-between gap-x-4">
                <dt>
                  {name}
                  {memory_bytes !== null && (
                    <span className="text-muted">
                      {' '}
                      {formatBytes(free_bytes)} of {formatBytes(memory_bytes)} free
                    </span>
                  )}
                </dt>
                <dd>{job_id ?? <span className="text-muted">no training</span>}</dd>
              </div>
            ))}
          </dl>
        )}
        {gpus.map((gpu, index) => (
          <div key={index} className="grid gap-1">
            <Progress
              value={gpu.memory_bytes && gpu.used_bytes ? gpu.used_bytes / gpu.memory_bytes : null}
              label={`${gpu.name}: ${formatBytes(gpu.used_bytes)} of ${formatBytes(gpu.memory_bytes)}`}
            />
            <p className="text-sm text-muted">
              {formatPercent(gpu.busy_percent === null ? null : gpu.busy_percent / 100)} busy
            </p>
          </div>
        ))}
      </div>
    </Card>
  )
}

/** How much of it is taken: `73% of 25.3 GB used`, and the same as a bar. */
const Share = ({ name, used, total, tone }: { name: string; used: number; total: number; tone: 'warn' | 'accent' }) => (
  <div className="grid max-w-48 gap-1.5">
    {formatPercent(used / total)} of {formatBytes(total)} used
    <Progress value={used / total} label={name} tone={tone} />
  </div>
)

function Engine({ machine: { engine } }: { machine: MachineState }) {
  return (
    <Card
      title="Engine"
      actions={
        <Status
          status={engine.status}
          tone={{ running: 'good', stopped: 'neutral', failing: 'bad' }[engine.status] as 'good'}
        />
      }
    >
      <div className="grid gap-4">
        {engine.problem && <Notice tone="bad">{engine.problem}</Notice>}
        {engine.models.map(
          ({ id, server_problem }) =>
            server_problem && (
              <Notice key={id} tone="warn">
                {id} is served without vLLM: {server_problem}
              </Notice>
            ),
        )}
        {engine.models.map(
          ({ id, name, base, asleep_for }) =>
            asleep_for &&
            base === null && (
              <Notice key={id} tone="warn">
                {name ?? id} sleeps while {asleep_for} trains. Requests for it wait a minute, then get 503.
              </Notice>
            ),
        )}
        <Facts
          facts={[
            ['Answers', `${formatCount(engine.running)} running, ${formatCount(engine.waiting)} waiting`],
            ['Speed', engine.tokens_per_second === null ? '–' : `${formatNumber(engine.tokens_per_second)} tokens/s`],
            ['Computed by', `${engine.chosen === 'vllm' ? 'vLLM' : 'the engine'}. ${engine.chosen_why}`],
            ['Memory', formatBytes(engine.memory_bytes)],
            ['Of that, contexts', formatBytes(engine.context_bytes)],
          ]}
        />
        <Table
          label="Loaded models"
          rows={engine.models}
          rowId={({ id }) => id}
          empty={
            <EmptyState compact title="No model is loaded">
              The next request loads what it needs.
            </EmptyState>
          }
          columns={[
            {
              id: 'id',
              header: 'Loaded',
              grow: true,
              cell: ({ id, name }) => (
                <>
                  {name ?? id} {name && <span className="text-muted">{id}</span>}
                </>
              ),
            },
            { id: 'bytes', header: 'Size', align: 'right', cell: (each) => <Bytes value={each.bytes} /> },
          ]}
        />
      </div>
    </Card>
  )
}

function Queues({ machine: { queues } }: { machine: MachineState }) {
  return (
    <Card title="Queues" flush>
      <Table
        label="Queues"
        rows={queues}
        rowId={({ kind }) => kind}
        empty={<EmptyState compact title="Nothing running or waiting" />}
        columns={[
          { id: 'kind', header: 'Work', grow: true, cell: (each) => each.kind },
          { id: 'running', header: 'Running', align: 'right', cell: (each) => each.running },
          { id: 'waiting', header: 'Waiting', align: 'right', cell: (each) => each.waiting },
          { id: 'oldest', header: 'Oldest', align: 'right', cell: (each) => <RelativeTime time={each.oldest_at} /> },
        ]}
      />
    </Card>
  )
}

function Disk({ machine: { disk } }: { machine: MachineState }) {
  return (
    <Card
      title="Disk by kind"
      description={
        disk.counted_at ? (
          <>
            Counted <RelativeTime time={disk.counted_at} />
          </>
        ) : (
          'Being counted'
        )
      }
      flush
    >
      <Table
        label="Disk by kind"
        rows={disk.kinds ?? []}
        rowId={({ kind }) => kind}
        empty={<EmptyState compact title="Not counted yet" />}
        columns={[
          { id: 'kind', header: 'Kind', grow: true, cell: (each) => each.kind },
          { id: 'bytes', header: 'Size', align: 'right', cell: (each) => <Bytes value={each.bytes} /> },
        ]}
      />
    </Card>
  )
}

function Replicas({ machine: { replicas, waiting } }: { machine: MachineState }) {
  return (
    <Card title="Model servers" flush>
      <Table
        label="Model servers"
        rows={replicas}
        rowId={({ name, model }) => `${name} ${model}`}
        columns={[
          { id: 'name', header: 'Server', grow: true, cell: (each) => each.name },
          {
            id: 'up',
            header: 'State',
            cell: ({ up }) => <Status status={up ? 'up' : 'down'} tone={up ? 'good' : 'bad'} />,
          },
          {
            id: 'load',
            header: 'Requests',
            align: 'right',
            cell: (each) => `${each.in_flight} of ${each.max_concurrent}`,
          },
        ]}
      />
      {waiting.length > 0 && (
        <p className="px-4 py-3 text-sm text-muted">
          Waiting: {waiting.map(({ model, requests }) => `${requests} for ${model}`).join(', ')}
        </p>
      )}
    </Card>
  )
}
