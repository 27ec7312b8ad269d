import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { Boxes, Rocket } from 'lucide-react'
import { type ReactNode, useEffect, useState } from 'react'
import { isMet, trialsOf } from '../../../contract/families.ts'
import type { Model, Need } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatBytes, formatCount, formatMoney, formatParameters } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { BaseBadges, BaseWeights, servedForm, useBases, useHubMachine } from '../../parts/base-weights.tsx'
import { DeployDialog } from '../../parts/deploy.tsx'
import { Button, ExternalLink, LinkButton } from '../../ui/button.tsx'
import { Badge, EmptyState, Loaded, Notice } from '../../ui/feedback.tsx'
import { Card, Facts, Page } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { toastError } from '../../ui/toast.tsx'
import { Message, RelativeTime } from '../../ui/values.tsx'

/** `/models/base/OWNER/NAME`: an open model to call, to train and to deploy. */
export default function BaseModelPage() {
  const id = useParams({ from: '/shell/models/base/$' })._splat ?? ''
  const query = useBases()
  const model = query.data?.models.find((each) => each.id === id)
  return (
    <Page
      title={model || !query.isSuccess ? id : 'Base model'}
      back={{ to: '/models', label: 'Models' }}
      status={model && <BaseBadges model={model} />}
      description={model?.description}
      actions={model && <Actions model={model} />}
    >
      <Loaded query={query}>
        {() =>
          model ? (
            <div className="grid gap-4">
              <Notices model={model} />
              <div className="grid items-start gap-4 lg:grid-cols-2">
                <About model={model} />
                <div className="grid gap-4">
                  <Weights model={model} />
                  <OnThisMachine model={model} />
                </div>
              </div>
              <Tested model={model} />
              {model.category !== 'embedding' && <TrainedFrom id={id} />}
            </div>
          ) : (
            <Card>
              <EmptyState
                icon={<Boxes aria-hidden />}
                title="There is no such base model"
                action={<LinkButton to="/models">All models</LinkButton>}
              >
                It may have been removed from this machine.
              </EmptyState>
            </Card>
          )
        }
      </Loaded>
    </Page>
  )
}

function Actions({ model }: { model: Model }) {
  const { id, name, category, methods, gated, weights } = model
  const mayTrain = useMay('tuning:write')
  const mayChat = useMay('inference')
  const mayDeploy = useMay('deployments:write')
  const [deploying, setDeploying] = useState(false)
  const answers = weights.available && category !== 'embedding'
  const navigate = useNavigate()
  const [trying, setTrying] = useState(false)
  useEffect(() => {
    if (trying && weights.available) void navigate({ to: '/playground', search: { models: id } })
  }, [trying, weights.available, id, navigate])
  const triable = category !== 'embedding' && !weights.available && !gated && model.needs.serve?.fits !== false
  return (
    <>
      {triable && mayTrain && mayChat && <TryButton model={model} trying={trying} onTry={setTrying} />}
      {answers && mayDeploy && (
        <Button icon={<Rocket aria-hidden />} onClick={() => setDeploying(true)}>
          Deploy
        </Button>
      )}
      {answers && mayChat && (
        <LinkButton to="/playground" search={{ models: id }}>
          Chat
        </LinkButton>
      )}
      {methods.length > 0 && mayTrain && (
        <LinkButton to="/jobs/new" search={{ model: id }} variant="primary">
          Train
        </LinkButton>
      )}
      {deploying && <DeployDialog model={id} suggestion={name} onClose={() => setDeploying(false)} />}
    </>
  )
}

/** Downloads the base; its page then opens the playground with it. */
function TryButton({
  model: { id, download },
  trying,
  onTry,
}: {
  model: Model
  trying: boolean
  onTry: (trying: boolean) => void
}) {
  const client = useQueryClient()
  const start = useMutation({
    mutationFn: () => tunery.hub.startDownload(id),
    onSuccess: () => client.invalidateQueries({ queryKey: ['hub'] }),
    onError: (error) => {
      onTry(false)
      toastError('Could not start the download')(error)
    },
  })
  const ended = download?.status === 'failed' || download?.status === 'cancelled'
  return (
    <Button
      busy={start.isPending || (trying && !ended)}
      onClick={() => {
        onTry(true)
        start.mutate()
      }}
    >
      Try it
    </Button>
  )
}

function Notices({ model: { download, gated, huggingface_id, pictures, weights } }: { model: Model }) {
  return (
    <>
      {download?.error && !weights.available && (
        <Notice tone="bad" title="The download failed">
          <Message text={download.error.message} />
        </Notice>
      )}
      {gated && !weights.available && (
        <Notice tone="warn" title="Accept its license first">
          Its owner gives it to people who have accepted the license on{' '}
          <ExternalLink href={`https://huggingface.co/${huggingface_id}`}>its page at Hugging Face</ExternalLink>. The
          service downloads it with their token (TUNERY_HUGGINGFACE_TOKEN).
        </Notice>
      )}
      {pictures?.notes.map((note) => (
        <Notice key={note}>
          <Message text={note} />
        </Notice>
      ))}
    </>
  )
}

function About({ model }: { model: Model }) {
  const { params_billions, active_params_billions, context_length, license, license_url, huggingface_id } = model
  const { methods, pricing } = model
  const { currency, training_per_million_tokens, input_per_million_tokens, output_per_million_tokens } = pricing
  const isFree = [training_per_million_tokens, input_per_million_tokens, output_per_million_tokens].every(
    (each) => each === 0,
  )
  const price = (amount: number): ReactNode => `${formatMoney(amount, currency)} per million tokens`
  return (
    <Card title="Model">
      <Facts
        facts={[
          [
            'Parameters',
            active_params_billions < params_billions
              ? `${formatParameters(params_billions)}, ${formatParameters(active_params_billions)} of them for a token`
              : formatParameters(params_billions),
          ],
          ['Context', `${formatCount(context_length)} tokens`],
          ['For', model.tasks.map((task) => taskNames[task]).join(', ')],
          license !== 'unknown' && [
            'License',
            license_url ? (
              <ExternalLink key="license" href={license_url}>
                {license}
              </ExternalLink>
            ) : (
              license
            ),
          ],
          [
            'Methods',
            methods.length > 0 ? (
              <span key="methods" className="flex gap-1">
                {methods.map((method) => (
                  <Badge key={method}>{method}</Badge>
                ))}
              </span>
            ) : (
              `None${model.category === 'embedding' ? '' : ' on this machine'}`
            ),
          ],
          model.merges_adapters && [
            'Adapters',
            'Merged into the weights at the end of a training: the engine cannot serve adapters of this base. Each ' +
              'model takes the disk and memory of the base.',
          ],
          ...(isFree
            ? []
            : ([
                ['Training', price(training_per_million_tokens)],
                ['Input', price(input_per_million_tokens)],
                ['Output', price(output_per_million_tokens)],
              ] as const)),
          huggingface_id !== null && [
            'Source',
            <ExternalLink key="source" href={`https://huggingface.co/${huggingface_id}`}>
              Hugging Face
            </ExternalLink>,
          ],
        ]}
      />
    </Card>
  )
}

function Weights({ model }: { model: Model }) {
  const { weights } = model
  const form = servedForm(model)
  return (
    <Card title="Weights" actions={<BaseWeights model={model} />}>
      <div className="grid gap-3">
        <Facts facts={[['Size', weights.size_mb === null ? 'Unknown' : formatBytes(weights.size_mb * 1e6)]]} />
        {(form || weights.how_to_get) && (
          <p className="text-sm text-muted">
            <Message text={form || weights.how_to_get!} />
          </p>
        )}
      </div>
    </Card>
  )
}

const taskNames = {
  chat: 'chat',
  code: 'code',
  pictures: 'images',
  thoughts: 'thinking',
  embeddings: 'embeddings',
} as const

/** What each use needs, and whether this machine has it. */
function OnThisMachine({ model: { needs } }: { model: Model }) {
  const machine = useHubMachine().data
  const rows = [
    { use: 'Train by lora', need: needs.lora },
    { use: 'Train by qlora', need: needs.qlora },
    { use: 'Train in full', need: needs.full },
    { use: 'Answer', need: needs.serve },
    { use: 'Download and convert', need: needs.disk },
  ].filter((row): row is { use: string; need: Need } => row.need !== null)
  const memory = machine && formatBytes(machine.memory_mb * 1e6)
  return (
    <Card
      title="On this machine"
      description={
        machine &&
        `It has ${memory} of ${machine.device === 'gpu' ? 'GPU memory' : 'memory'}, and ` +
          `${formatBytes(machine.free_disk_mb * 1e6)} of free disk.`
      }
      flush
    >
      <Table
        label="On this machine"
        rows={rows}
        rowId={({ use }) => use}
        empty={
          <EmptyState compact title="Not known yet">
            Its sizes are read when its weights are here.
          </EmptyState>
        }
        columns={[
          { id: 'use', header: 'To', grow: true, cell: ({ use }) => use },
          { id: 'need', header: 'It needs', align: 'right', cell: ({ need }) => formatBytes(need.mb * 1e6) },
          {
            id: 'fits',
            header: 'Fits',
            align: 'right',
            cell: ({ need }) => <Badge tone={need.fits ? 'good' : 'warn'}>{need.fits ? 'fits' : 'too much'}</Badge>,
          },
        ]}
      />
      <p className="px-4 py-3 text-sm text-muted">
        Trainings of rank 16, in batches of 4 rows of 512 tokens. An estimate of your own job is on the page of a new
        job.
      </p>
    </Card>
  )
}

/** What was tried of its family of models. */
function Tested({ model: { family, tested } }: { model: Model }) {
  return (
    <Card
      title="Its family of models"
      description={tested && `Tried with a small model of the architecture ${family}.`}
      flush
    >
      {tested ? (
        <Table
          label="Its family of models"
          rows={trialsOf(tested)}
          rowId={({ title }) => title}
          columns={[
            { id: 'what', header: 'Tried', cell: ({ title }) => <span className="whitespace-normal">{title}</span> },
            {
              id: 'result',
              header: 'Result',
              grow: true,
              cell: ({ result }) => (
                <div className="whitespace-normal wrap-anywhere">
                  {isMet(result) && result !== 'none' ? <Badge tone="good">{result}</Badge> : <Message text={result} />}
                </div>
              ),
            },
          ]}
        />
      ) : (
        <EmptyState compact title="Not tried yet">
          The service checks what it serves after each training, and says so if it differs.
        </EmptyState>
      )}
    </Card>
  )
}

/** The account's own models on this base. */
function TrainedFrom({ id }: { id: string }) {
  const mayRead = useMay('tuning:read')
  const query = useQuery({
    queryKey: ['models', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.models.list({ limit: 100 }, { signal }),
    enabled: mayRead,
  })
  if (!mayRead) return null
  return (
    <Card title="Your models on this base" flush>
      <Loaded query={query}>
        {({ items }) => (
          <Table
            label="Your models on this base"
            rows={items.filter(({ base_model_id }) => base_model_id === id)}
            rowId={(each) => each.id}
            link={(each) => ({ to: '/models/$modelId', params: { modelId: each.id } })}
            empty={
              <EmptyState compact title="None yet">
                Train it on your examples to create one.
              </EmptyState>
            }
            columns={[
              { id: 'name', header: 'Name', grow: true, cell: (each) => each.name },
              { id: 'method', header: 'Method', cell: (each) => <Badge>{each.method}</Badge> },
              {
                id: 'created',
                header: 'Created',
                align: 'right',
                cell: (each) => <RelativeTime time={each.created_at} />,
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  )
}
