import { useQuery } from '@tanstack/react-query'
import { useParams } from '@tanstack/react-router'
import { Boxes, Rocket } from 'lucide-react'
import { type ReactNode, useState } from 'react'
import type { Model } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatBytes, formatCount, formatMoney, formatParameters } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { BaseBadges, BaseWeights, servedForm, useBases } from '../../parts/base-weights.tsx'
import { DeployDialog } from '../../parts/deploy.tsx'
import { Button, ExternalLink, LinkButton } from '../../ui/button.tsx'
import { Badge, EmptyState, Loaded, Notice } from '../../ui/feedback.tsx'
import { Card, Facts, Page } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { Message, RelativeTime } from '../../ui/values.tsx'

/** `/models/base/OWNER/NAME`: an open model to call, to train and to deploy. */
export default function BaseModelPage() {
  const id = useParams({ from: '/shell/models/base/$' })._splat ?? ''
  const query = useBases()
  const model = query.data?.models.find((each) => each.id === id)
  return (
    <Page
      title={id}
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
                <Weights model={model} />
              </div>
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

function Actions({ model: { id, name, category, methods, weights } }: { model: Model }) {
  const mayTrain = useMay('tuning:write')
  const mayChat = useMay('inference')
  const mayDeploy = useMay('deployments:write')
  const [deploying, setDeploying] = useState(false)
  const answers = weights.available && category !== 'embedding'
  return (
    <>
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
  const { params_billions, context_length, license, huggingface_id, methods, pricing } = model
  const { currency, training_per_million_tokens, input_per_million_tokens, output_per_million_tokens } = pricing
  const isFree = [training_per_million_tokens, input_per_million_tokens, output_per_million_tokens].every(
    (each) => each === 0,
  )
  const price = (amount: number): ReactNode => `${formatMoney(amount, currency)} per million tokens`
  return (
    <Card title="Model">
      <Facts
        facts={[
          ['Parameters', formatParameters(params_billions)],
          ['Context', `${formatCount(context_length)} tokens`],
          license !== 'unknown' && ['License', license],
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
