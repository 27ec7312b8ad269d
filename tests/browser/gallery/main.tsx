// Every component with what it may have to show: texts that are too long, nothing, thousands of rows, errors.
import { CSPProvider } from '@base-ui/react/csp-provider'
import { Tooltip } from '@base-ui/react/tooltip'
import { createMemoryHistory, createRootRoute, createRoute, createRouter, RouterProvider } from '@tanstack/react-router'
import { Database, Ellipsis, Plus, Trash2 } from 'lucide-react'
import { useState } from 'react'
import { createRoot } from 'react-dom/client'
import { TuneryError } from '../../../sdk/index.ts'
import '../../../web/styles.css'
import { formatDuration } from '../../../web/lib/format.ts'
import { Bars, Histogram, Sparkline } from '../../../web/ui/bars.tsx'
import { Button, CopyButton, IconButton, LinkButton, TextLink } from '../../../web/ui/button.tsx'
import { Chart } from '../../../web/ui/chart.tsx'
import { Combobox, Select, Slider } from '../../../web/ui/choices.tsx'
import { CodeBlock, CodeTabs } from '../../../web/ui/code.tsx'
import { Disclosure, FileDrop, Help } from '../../../web/ui/disclosure.tsx'
import { Badge, EmptyState, ErrorState, Notice, Progress, SkeletonLines, Status } from '../../../web/ui/feedback.tsx'
import { Field, Form, Input, NumberInput, Textarea } from '../../../web/ui/field.tsx'
import { Card, Facts, Page, Stat, Tabs } from '../../../web/ui/layout.tsx'
import { ConfirmDialog, Dialog, Menu } from '../../../web/ui/popups.tsx'
import { Table } from '../../../web/ui/table.tsx'
import { Toasts, toast } from '../../../web/ui/toast.tsx'
import { Checkbox, Segments, Switch } from '../../../web/ui/toggles.tsx'
import { Code, Money, RelativeTime } from '../../../web/ui/values.tsx'

const steps = Array.from({ length: 400 }, (_, index) => index + 1)
const raw = steps.map((step) => 2.4 * Math.exp(-step / 90) + 0.35 + 0.18 * Math.sin(step * 1.7) * Math.exp(-step / 200))
const smooth = raw.map((_, index) => {
  const from = raw.slice(Math.max(0, index - 15), index + 1)
  return from.reduce((sum, value) => sum + value, 0) / from.length
})
const evaluated = steps.filter((step) => step % 50 === 0)
const series = [
  { name: 'Train loss, each batch', x: steps, y: raw, color: 1, faint: true },
  { name: 'Train loss', x: steps, y: smooth, color: 1 },
  {
    name: 'Validation loss',
    x: evaluated,
    y: evaluated.map((step) => smooth[step - 1]! + 0.08),
    color: 2,
    points: true,
  },
] as const

interface Row {
  id: string
  name: string
  rows: number
  loss: number | null
}
const rows: Row[] = Array.from({ length: 2000 }, (_, index) => ({
  id: `row_${index}`,
  name: index === 3 ? `A name that is far too long for its column, ${'and goes on '.repeat(12)}` : `dataset ${index}`,
  rows: (index * 7919) % 5000,
  loss: index % 7 === 0 ? null : (index % 40) / 10,
}))
const columns = [
  { id: 'name', header: 'Name', value: (row: Row) => row.name, grow: true },
  { id: 'status', header: 'Status', cell: () => <Status status="ready" />, from: 'sm' },
  { id: 'rows', header: 'Rows', value: (row: Row) => row.rows, align: 'right' },
  { id: 'loss', header: 'Loss', value: (row: Row) => row.loss, align: 'right', from: 'md' },
] as const

const methods = [
  { value: 'lora', label: 'LoRA', note: 'Trains a small adapter' },
  { value: 'qlora', label: 'QLoRA', note: 'The same, on a base in 4 bits' },
  { value: 'full', label: 'Full', note: 'Trains all weights', disabled: true },
] as const
const many = Array.from({ length: 300 }, (_, index) => ({ value: `m${index}`, label: `owner/model-${index}-instruct` }))

function Gallery() {
  const [log, setLog] = useState<'linear' | 'log'>('linear')
  const [method, setMethod] = useState<'lora' | 'qlora' | 'full'>('lora')
  const [model, setModel] = useState<string | null>(null)
  const [number, setNumber] = useState<number | null>(3)
  const [on, setOn] = useState(true)
  const [value, setValue] = useState(0.7)
  const [open, setOpen] = useState(false)
  const [selected, setSelected] = useState<Set<string>>(new Set())
  return (
    <Page
      title="Gallery"
      description="Every component, for tests."
      back={{ to: '/', label: 'Components' }}
      actions={
        <>
          <Menu
            trigger={<IconButton label="More" icon={<Ellipsis aria-hidden />} />}
            entries={[
              { label: 'Rename', onClick: () => toast.good('Renamed', 'It has another name now.') },
              null,
              { label: 'Fail', danger: true, onClick: () => toast.bad('That failed', 'The disk is full. Make room.') },
            ]}
          />
          <Button onClick={() => setOpen(true)}>Open dialog</Button>
          <ConfirmDialog
            trigger={
              <Button variant="danger" icon={<Trash2 aria-hidden />}>
                Delete
              </Button>
            }
            title="Delete the dataset?"
            action="Delete dataset"
            onConfirm={() => Promise.reject(new Error('A job needs it. Cancel the job first.'))}
          >
            Its rows are gone for good. Models that were trained on it stay.
          </ConfirmDialog>
          <Button variant="primary" icon={<Plus aria-hidden />}>
            New
          </Button>
        </>
      }
    >
      <Dialog
        open={open}
        onOpenChange={setOpen}
        title="A dialog"
        description="With a form."
        footer={
          <>
            <Button onClick={() => setOpen(false)}>Cancel</Button>
            <Button variant="primary">Save</Button>
          </>
        }
      >
        <Field label="Name">
          <Input defaultValue="tickets" />
        </Field>
      </Dialog>
      <div className="grid gap-4">
        <Card
          title="Curves"
          actions={
            <Segments
              label="Scale"
              value={log}
              onChange={setLog}
              choices={[
                { value: 'linear', label: 'Linear' },
                { value: 'log', label: 'Log' },
              ]}
            />
          }
        >
          <Chart
            title="Loss"
            series={series}
            xLabel="Step"
            yLabel="Loss"
            log={log === 'log'}
            marks={[{ x: 200, label: 'epoch 2' }]}
          />
        </Card>
        <div className="grid gap-4 lg:grid-cols-2">
          <Card title="Form">
            <Form onSubmit={() => toast.info('Sent')}>
              <Field label="Name" help="What you call it." error="is taken. Choose another.">
                <Input defaultValue="tickets" />
              </Field>
              <Field
                label={
                  <>
                    Method <Help word="LoRA">A small set of weights beside the base's, which stay as they are.</Help>
                  </>
                }
              >
                <Select value={method} onChange={setMethod} choices={methods} />
              </Field>
              <Field label="Model" optional>
                <Combobox value={model} onChange={setModel} choices={many} placeholder="Search models" clearable />
              </Field>
              <Field label="Epochs" help="1 to 50. Default 3.">
                <NumberInput value={number} onChange={setNumber} min={1} max={50} />
              </Field>
              <Field label="Notes" optional>
                <Textarea rows={2} placeholder="What you want to remember" />
              </Field>
              <Checkbox checked={on} onChange={setOn} label="Keep checkpoints" help="They take disk space." />
              <Switch checked={on} onChange={setOn} label="Store answers" help="To learn from them later." />
              <Slider label="Temperature" value={value} onChange={setValue} min={0} max={2} step={0.1} />
              <div className="flex justify-end gap-2">
                <Button busy>Sending</Button>
                <Button disabled>Disabled</Button>
                <Button type="submit" variant="primary">
                  Save
                </Button>
              </div>
            </Form>
          </Card>
          <div className="grid content-start gap-4">
            <Card title="States">
              <div className="grid gap-3">
                <div className="flex flex-wrap gap-2">
                  {['queued', 'running', 'paused', 'completed', 'failed', 'cancelled'].map((status) => (
                    <Status key={status} status={status} />
                  ))}
                  <Badge tone="warn">slowed</Badge>
                  <Badge>lora</Badge>
                </div>
                <Progress value={0.42} label="Progress" />
                <Progress value={null} label="Unknown progress" />
                <Notice tone="warn" title="3 rows will be cut" action={<Button size="sm">Show</Button>}>
                  They are longer than 512 tokens.
                </Notice>
                <Notice tone="bad" title="It failed">
                  The disk is full.
                </Notice>
                <Notice tone="good">All rows are valid.</Notice>
                <Notice tone="accent">Training waits for the set-up.</Notice>
                <SkeletonLines lines={3} />
                <dl className="grid grid-cols-3 gap-4">
                  <Stat label="Cost" value={<Money value={0.00423} currency="USD" />} note="today" />
                  <Stat label="Time" value={formatDuration(3725)} />
                  <Stat label="Loss" value={<Sparkline values={smooth} label="Loss" />} />
                </dl>
                <Facts
                  facts={[
                    [
                      'Id',
                      <span key="id" className="flex items-center gap-1">
                        <Code>ds_0123456789abcdef</Code>
                        <CopyButton text="ds_0123456789abcdef" label="Copy id" />
                      </span>,
                    ],
                    ['Created', <RelativeTime key="time" time={new Date(Date.now() - 7_200_000).toISOString()} />],
                    [
                      'Link',
                      <TextLink key="link" to="/">
                        a link in text
                      </TextLink>,
                    ],
                  ]}
                />
              </div>
            </Card>
            <Card title="Bars">
              <div className="grid gap-5">
                <Bars
                  title="Requests"
                  bars={Array.from({ length: 30 }, (_, index) => ({
                    label: `2026-01-${index + 1}`,
                    value: (index * 37) % 90,
                  }))}
                  limit={{ value: 80, label: 'limit' }}
                />
                <Histogram
                  title="Tokens a row"
                  unit="tokens"
                  cut={512}
                  bins={Array.from({ length: 16 }, (_, index) => ({
                    from: index * 64,
                    to: index * 64 + 63,
                    count: Math.round(200 * Math.exp(-((index - 4) ** 2) / 9)),
                  }))}
                />
              </div>
            </Card>
          </div>
        </div>
        <Card>
          <Tabs
            label="Parts"
            tabs={[
              {
                value: 'table',
                label: 'Rows',
                count: rows.length,
                panel: (
                  <Table
                    label="Rows"
                    columns={columns}
                    rows={rows}
                    rowId={({ id }) => id}
                    link={() => ({ to: '/' })}
                    selected={selected}
                    onSelect={setSelected}
                    sort={{ id: 'rows', desc: true }}
                    maxHeight="20rem"
                  />
                ),
              },
              {
                value: 'code',
                label: 'Code',
                panel: (
                  <CodeTabs
                    label="Language"
                    samples={[
                      { name: 'curl', code: `curl ${'https://example.com/a/long/address/'.repeat(6)}` },
                      { name: 'Python', code: 'print(1)' },
                    ]}
                  />
                ),
              },
              {
                value: 'empty',
                label: 'Empty',
                panel: (
                  <EmptyState
                    icon={<Database />}
                    title="No datasets yet"
                    action={
                      <LinkButton to="/" variant="primary">
                        Upload
                      </LinkButton>
                    }
                  >
                    Upload a file of examples.
                  </EmptyState>
                ),
              },
              {
                value: 'error',
                label: 'Error',
                panel: (
                  <ErrorState
                    error={
                      new TuneryError(503, new Headers({ 'x-request-id': 'req_1' }), {
                        code: 'overloaded',
                        message: 'Try again in 3 s.',
                      })
                    }
                    retry={() => {}}
                  />
                ),
              },
            ]}
          />
        </Card>
        <Card title="More">
          <div className="grid gap-4">
            <Disclosure summary="Advanced">Folded away.</Disclosure>
            <FileDrop
              title="Drop a file of examples"
              note="jsonl, csv, parquet or a zip, up to 1 GB"
              onFile={(file) => toast.info(file.name)}
            />
            <CodeBlock title="response.json" code={JSON.stringify({ id: 'job_1', status: 'running' }, null, 2)} />
          </div>
        </Card>
      </div>
    </Page>
  )
}

const root = createRootRoute()
const index = createRoute({ getParentRoute: () => root, path: '/', component: Gallery })
const router = createRouter({ routeTree: root.addChildren([index]), history: createMemoryHistory() })
createRoot(document.getElementById('root')!).render(
  <CSPProvider disableStyleElements>
    <Tooltip.Provider>
      <Toasts>
        <RouterProvider router={router as never} />
      </Toasts>
    </Tooltip.Provider>
  </CSPProvider>,
)
