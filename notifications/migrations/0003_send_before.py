from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('notifications', '0002_delivery_engine'),
    ]

    operations = [
        migrations.AddField(
            model_name='delivery',
            name='send_before',
            field=models.DateTimeField(blank=True, help_text='From then on it is of no use and is dropped; empty: it always is of use.', null=True),
        ),
    ]
