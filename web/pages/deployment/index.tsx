import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { Ellipsis, Trash2, Undo2 } from 'lucide-react'
import { useState } from 'react'
import type { Deployment } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { useModelNames } from '../../lib/names.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { ModelName } from '../../parts/names.tsx'
import { Button, IconButton, LinkButton, TextLink } from '../../ui/button.tsx'
import { CodeTabs } from '../../ui/code.tsx'
import { EmptyState, Loaded, Notice, Status } from '../../ui/feedback.tsx'
import { Card, Facts, Page } from '../../ui/layout.tsx'
import { ConfirmDialog, Menu } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Message, RelativeTime } from '../../ui/values.tsx'
import { ScalingCard } from './scaling.tsx'
import { SwitchModel } from './switch.tsx'
import { Traffic } from './traffic.tsx'

const isSettled = ({ status, pending }: Deployment) => status !== 'starting' && pending === null

export default function DeploymentPage() {
  const { name } = useParams({ from: '/shell/deployments/$name' })
  const query = useQuery({
    queryKey: ['deployments', name],
    queryFn: ({ signal }) => tunery.deployments.get(name, { signal }),
    refetchInterval: ({ state }) => (state.data && isSettled(state.data) ? 4 * refresh_ms : refresh_ms),
  })
  return (
    <Page
      title={name}
      back={{ to: '/deployments', label: 'Deployments' }}
      status={query.data && <Status status={query.data.status} />}
      actions={query.data && <Actions deployment={query.data} />}
    >
      <Loaded query={query}>
        {(deployment) => (
          <div className="grid gap-4">
            <Notices deployment={deployment} />
            <div className="grid items-start gap-4 lg:grid-cols-2">
              <Calls name={deployment.name} />
              <Serves deployment={deployment} />
            </div>
            <Traffic name={deployment.name} />
            <ScalingCard name={deployment.name} />
            <History name={deployment.name} />
          </div>
        )}
      </Loaded>
    </Page>
  )
}

function Actions({ deployment }: { deployment: Deployment }) {
  const mayWrite = useMay('deployments:write')
  const navigate = useNavigate()
  const client = useQueryClient()
  const [switching, setSwitching] = useState(false)
  const [deleting, setDeleting] = useState(false)
  const nameOf = useModelNames()
  const refresh = () => client.invalidateQueries({ queryKey: ['deployments'] })
  return (
    <>
      <LinkButton to="/playground" search={{ models: deployment.name }}>
        Chat
      </LinkButton>
      {mayWrite && (
        <>
          <Menu
            trigger={<IconButton label="More actions" variant="secondary" icon={<Ellipsis aria-hidden />} />}
            entries={[
              {
                label: 'Delete deployment',
                icon: <Trash2 aria-hidden />,
                danger: true,
                onClick: () => setDeleting(true),
              },
            ]}
          />
          <ConfirmDialog
            open={deleting}
            onOpenChange={setDeleting}
            title={`Delete ${deployment.name}?`}
            action="Delete deployment"
            onConfirm={async () => {
              await tunery.deployments.delete(deployment.name)
              await navigate({ to: '/deployments' })
              client.removeQueries({ queryKey: ['deployments', deployment.name] })
              await client.invalidateQueries({ queryKey: ['deployments', 'list'] })
            }}
          >
            Requests to it fail immediately. The model stays.
          </ConfirmDialog>
          {deployment.former_model && (
            <ConfirmDialog
              trigger={<Button icon={<Undo2 aria-hidden />}>Roll back</Button>}
              title={`Roll back ${deployment.name}?`}
              action="Roll back"
              danger={false}
              onConfirm={async () => {
                await tunery.deployments.rollback(deployment.name)
                await refresh()
                toast.good('Rolled back')
              }}
            >
              {nameOf(deployment.former_model)} answers from the next request on. A pending switch is cancelled.
            </ConfirmDialog>
          )}
          <Button variant="primary" onClick={() => setSwitching(true)}>
            Switch model
          </Button>
          {switching && <SwitchModel deployment={deployment} onClose={() => setSwitching(false)} refresh={refresh} />}
        </>
      )}
    </>
  )
}

function Notices({ deployment: { error, pending, status } }: { deployment: Deployment }) {
  return (
    <>
      {error && (
        <Notice tone="bad" title="Deployment failed">
          <Message text={error.message} />
        </Notice>
      )}
      {status === 'starting' && !error && <Notice tone="accent">Loading and checking the model.</Notice>}
      {pending && (
        <Notice
          tone="accent"
          title="Switch pending"
          action={
            <TextLink to="/evaluations/$evaluationId" params={{ evaluationId: pending.evaluation }}>
              View evaluation
            </TextLink>
          }
        >
          <ModelName id={pending.model} /> takes over if its evaluation passes
          {pending.gate.min_score !== undefined && ` with a score of at least ${pending.gate.min_score}`}
          {pending.gate.not_worse_than_current && ', not significantly worse than the current model'}.
        </Notice>
      )}
    </>
  )
}

function Serves({ deployment }: { deployment: Deployment }) {
  const { model, base_model_id, former_model, replicas, created_at, updated_at } = deployment
  return (
    <Card title="Serving">
      <Facts
        facts={[
          ['Model', <ModelName key="model" id={model} />],
          ['Base', <ModelName key="base" id={base_model_id} />],
          ['Previous model', former_model ? <ModelName key="former" id={former_model} /> : 'None'],
          ['Replicas', replicas],
          ['Created', <RelativeTime key="created" time={created_at} />],
          ['Updated', <RelativeTime key="changed" time={updated_at} />],
        ]}
      />
    </Card>
  )
}

function Calls({ name }: { name: string }) {
  const { origin } = location
  return (
    <Card
      title="Call it"
      description="Works with any OpenAI client."
      actions={
        <TextLink to="/settings/$section" params={{ section: 'keys' }}>
          API keys
        </TextLink>
      }
    >
      <CodeTabs
        label="Language"
        samples={[
          {
            name: 'curl',
            code: `curl ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $TUNERY_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '{
    "model": "${name}",
    "messages": [{ "role": "user", "content": "Hello" }]
  }'`,
          },
          {
            name: 'TypeScript',
            code: `import OpenAI from 'openai'

const openai = new OpenAI({ baseURL: '${origin}/v1', apiKey: process.env.TUNERY_KEY })
const answer = await openai.chat.completions.create({
  model: '${name}',
  messages: [{ role: 'user', content: 'Hello' }],
})`,
          },
          {
            name: 'Python',
            code: `import os
from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=os.environ["TUNERY_KEY"])
answer = client.chat.completions.create(
    model="${name}",
    messages=[{"role": "user", "content": "Hello"}],
)`,
          },
        ]}
      />
    </Card>
  )
}

const actions = {
  created: 'created',
  switched: 'switched',
  gate_passed: 'evaluation passed, switched',
  gate_refused: 'evaluation failed, not switched',
  rolled_back: 'rolled back',
}

function History({ name }: { name: string }) {
  const query = useQuery({
    queryKey: ['deployments', name, 'history'],
    queryFn: ({ signal }) => tunery.deployments.history(name, { limit: 100 }, { signal }),
    refetchInterval: 4 * refresh_ms,
  })
  return (
    <Card title="History" flush>
      <Loaded query={query}>
        {({ items }) => (
          <Table
            label="History"
            rows={items}
            rowId={({ id }) => id}
            empty={<EmptyState compact title="No changes yet" />}
            columns={[
              { id: 'action', header: 'Change', cell: (each) => actions[each.action] },
              { id: 'model', header: 'Model', grow: true, cell: (each) => <ModelName id={each.model} /> },
              { id: 'reason', header: 'Reason', from: 'md', cell: (each) => each.reason ?? '–' },
              {
                id: 'evaluation',
                header: 'Evaluation',
                from: 'lg',
                cell: (each) =>
                  each.evaluation ? (
                    <TextLink to="/evaluations/$evaluationId" params={{ evaluationId: each.evaluation }}>
                      View
                    </TextLink>
                  ) : (
                    '–'
                  ),
              },
              { id: 'when', header: 'When', align: 'right', cell: (each) => <RelativeTime time={each.created_at} /> },
            ]}
          />
        )}
      </Loaded>
    </Card>
  )
}
