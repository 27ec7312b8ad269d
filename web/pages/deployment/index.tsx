import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function DeploymentPage() {
  return (
    <Page title="Deployment">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
