import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function WelcomePage() {
  return (
    <Page title="Welcome">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
