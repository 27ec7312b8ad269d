import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { Undo2 } from 'lucide-react'
import { useState } from 'react'
import type { Deployment } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button, LinkButton, TextLink } from '../../ui/button.tsx'
import { CodeTabs } from '../../ui/code.tsx'
import { EmptyState, Loaded, Notice, Status } from '../../ui/feedback.tsx'
import { Card, Facts, Page } from '../../ui/layout.tsx'
import { ConfirmDialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'
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
      description={query.data && <Status status={query.data.status} />}
      actions={query.data && <Actions deployment={query.data} />}
    >
      <Loaded query={query}>
        {(deployment) => (
          <div className="grid gap-4">
            <Notices deployment={deployment} />
            <Traffic name={deployment.name} />
            <div className="grid items-start gap-4 lg:grid-cols-2">
              <Serves deployment={deployment} />
              <Calls name={deployment.name} />
            </div>
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
  const refresh = () => client.invalidateQueries({ queryKey: ['deployments'] })
  return (
    <>
      <LinkButton to="/playground" search={{ models: deployment.name }}>
        Chat
      </LinkButton>
      {mayWrite && (
        <>
          <ConfirmDialog
            trigger={<Button>Delete</Button>}
            title={`Stop serving ${deployment.name}?`}
            action="Delete deployment"
            onConfirm={async () => {
              await tunery.deployments.delete(deployment.name)
              await refresh()
              await navigate({ to: '/deployments' })
            }}
          >
            Programs that call it get an error at once. The model stays.
          </ConfirmDialog>
          {deployment.former_model && (
            <ConfirmDialog
              trigger={<Button icon={<Undo2 aria-hidden />}>Roll back</Button>}
              title="Roll back?"
              action="Roll back"
              danger={false}
              onConfirm={async () => {
                await tunery.deployments.rollback(deployment.name)
                await refresh()
                toast.good('Rolled back')
              }}
            >
              The next request is answered by <Code>{deployment.former_model}</Code>. A pending gate ends.
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
        <Notice tone="bad" title="It cannot be served">
          {error.message}
        </Notice>
      )}
      {status === 'starting' && !error && <Notice tone="accent">The model is being loaded and checked.</Notice>}
      {pending && (
        <Notice
          tone="accent"
          title="A gate is pending"
          action={
            <TextLink to="/evaluations/$evaluationId" params={{ evaluationId: pending.evaluation }}>
              See the evaluation
            </TextLink>
          }
        >
          <Code>{pending.model}</Code> serves next if its evaluation passes
          {pending.gate.min_score !== undefined && `: a score of ${pending.gate.min_score} or more`}
          {pending.gate.not_worse_than_current && ', not worse than the current model by more than chance'}.
        </Notice>
      )}
    </>
  )
}

function Serves({ deployment }: { deployment: Deployment }) {
  const { model, base_model_id, former_model, replicas, created_at, updated_at } = deployment
  const isTuned = model.startsWith('mdl_')
  return (
    <Card title="What serves it">
      <Facts
        facts={[
          [
            'Model',
            isTuned ? (
              <TextLink key="model" to="/models/$modelId" params={{ modelId: model }}>
                {model}
              </TextLink>
            ) : (
              <Code key="model">{model}</Code>
            ),
          ],
          ['Base', <Code key="base">{base_model_id}</Code>],
          ['Before', former_model ? <Code key="former">{former_model}</Code> : 'nothing'],
          ['Replicas', replicas],
          ['Created', <RelativeTime key="created" time={created_at} />],
          ['Changed', <RelativeTime key="changed" time={updated_at} />],
        ]}
      />
    </Card>
  )
}

function Calls({ name }: { name: string }) {
  const { origin } = location
  return (
    <Card title="Call it" description="With any client of OpenAI's API.">
      <CodeTabs
        label="Language"
        samples={[
          {
            name: 'curl',
            code: `curl ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $TUNERY_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '{"model":"${name}","messages":[{"role":"user","content":"Hello"}]}'`,
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
  gate_passed: 'passed its gate, switched',
  gate_refused: 'refused by its gate',
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
            empty={<EmptyState compact title="Nothing has changed yet" />}
            columns={[
              { id: 'action', header: 'What', cell: (each) => actions[each.action] },
              { id: 'model', header: 'Model', grow: true, cell: (each) => <Code>{each.model}</Code> },
              { id: 'reason', header: 'Why', from: 'md', cell: (each) => each.reason ?? '–' },
              {
                id: 'evaluation',
                header: 'Evaluation',
                from: 'lg',
                cell: (each) =>
                  each.evaluation ? (
                    <TextLink to="/evaluations/$evaluationId" params={{ evaluationId: each.evaluation }}>
                      see it
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
